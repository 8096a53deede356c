"""Code of one's own, outside the package: a part, an objective, a recipe and a callback in one file, for every verb."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import heddle
from heddle.checkpoints.store import Store
from heddle.cli.main import main
from heddle.core import DamageError, UsageError, user_code

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_part.py"
TINY = "model.layers=1 model.width=16 model.heads=2 tokenizer=byte rows.length=32 training.batch=2 validation_rows=2"
WORDS = ["train", "maxout", "data=my.txt", *TINY.split(), "hardware.device=cpu"]
CANARY = '\nimport os\nfrom pathlib import Path\n\nPath(os.environ["CANARY"]).touch()  # shows that this ran\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_user_code: Path) -> Path:
    """Make a folder with the file, which leaves a mark when it runs, and a text; work there."""
    monkeypatch.setenv("CANARY", str(tmp_path / "ran"))
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "own.py").write_text(EXAMPLE.read_text() + CANARY)
    (folder / "my.txt").write_text("".join(f"Line {i} of a text that says what line {i} is.\n" for i in range(200)))
    monkeypatch.chdir(folder)
    return folder


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has loaded."""
    user_code._warn_of_other_code.cache_clear()
    monkeypatch.setattr(user_code, "_loaded", {})
    monkeypatch.setattr(user_code, "_named", {})


def kill_after_a_save(folder: Path) -> int:
    """Train in another process, and kill it once it has saved; return its last checkpoint."""
    words = [*WORDS, "--use", "own.py", "training.steps=100000", "every.save=3", "every.log=1"]
    child = subprocess.Popen([sys.executable, "-m", "heddle", *words], stdout=subprocess.DEVNULL, cwd=folder)
    store, until = folder / "runs" / "maxout" / "checkpoints", time.monotonic() + 200
    while child.poll() is None and time.monotonic() < until and len(list(store.glob("step-*"))) < 2:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    newest = Store(store).newest()
    assert newest is not None, f"exit code {child.returncode}"
    return newest.step


@pytest.mark.slow
def test_a_run_finds_its_code_after_a_kill_and_from_another_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = kill_after_a_save(home)
    (home / "own.py").unlink()  # the run has kept it
    assert main(["train", "maxout", f"training.steps={step + 2}"]) == 0
    assert f"resumed at step {step}" in capsys.readouterr().out
    (home.parent / "elsewhere").mkdir()
    monkeypatch.chdir(home.parent / "elsewhere")
    run = str(home / "runs" / "maxout")
    newest = Store(Path(run) / "checkpoints").newest()
    assert newest is not None and newest.step == step + 2
    seen = newest.state["callbacks"]["token_budget"]["seen"]
    assert 2 * 30 * (step + 2) <= seen <= 2 * 32 * (step + 2)  # counted over both processes
    verbs: list[list[str]] = [
        ["generate", "Line", "-m", run, "--max-tokens", "4"],
        ["evaluate", "-m", run, "--data", str(home / "my.txt")],
        ["show", run],
        ["score", str(home / "my.txt"), "-m", run],
        ["convert", run, "converted", "--to", "heddle"],
        ["show", "converted"],
        ["generate", "Line", "-m", "converted", "--max-tokens", "4"],
    ]
    for words in verbs:
        another_process(monkeypatch)
        assert main(words) == 0, (words, capsys.readouterr().err)
        capsys.readouterr()
    another_process(monkeypatch)
    assert "Maxout" in str(heddle.load(run).model) and "Maxout" in str(heddle.load("converted").model)


def trained(*more: str) -> Path:
    """Train the recipe of the file for two steps."""
    assert main([*WORDS, "--use", "own.py", "training.steps=2", *more]) == 0
    return Path("runs/maxout").absolute()


def test_the_run_records_file_and_hash(home: Path) -> None:
    run = trained()
    config: dict[str, Any] = json.loads((run / "config.json").read_text())
    (entry,) = config["use"]
    path, _, sha256 = entry.partition("#sha256=")
    assert (run / path).read_bytes() == (home / "own.py").read_bytes()
    assert Path(path).parts == ("code", sha256[:12], "own.py")
    assert config["objective"]["kind"] == "focal" and config["callbacks"][0]["kind"] == "token_budget"
    assert user_code.is_trusted(sha256)


def test_an_altered_file_is_noticed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained()
    (kept,) = run.rglob("code/*/own.py")
    kept.write_text(kept.read_text() + "# another line\n")
    another_process(monkeypatch)
    capsys.readouterr()
    for words in (["generate", "a", "-m", str(run)], ["show", str(run)], ["train", str(run)]):
        assert main(words) == DamageError.exit_code
        assert "own.py: altered since" in capsys.readouterr().err
    assert main(["generate", "a", "-m", str(run), "--max-tokens", "2", "--trust-run"]) == DamageError.exit_code
    capsys.readouterr()
    assert main(["generate", "a", "-m", str(run), "--max-tokens", "2", "--use", str(kept)]) == 0
    assert "not the code that" in capsys.readouterr().err
    another_process(monkeypatch)
    (home / "own.py").write_text((home / "own.py").read_text() + "# my own other line\n")
    assert main(["train", str(run), "training.steps=3", "--use", "own.py"]) == 0  # what I name, I want
    assert "not the code that" in capsys.readouterr().err
    assert len(list(run.rglob("code/*/own.py"))) == 2  # earlier checkpoints have theirs


def test_a_strangers_code_never_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, canary = str(trained()), Path(os.environ["CANARY"])
    assert canary.exists()  # it shows what runs
    monkeypatch.setenv("HEDDLE_CONFIG", str(home.parent / "another_user"))
    (home.parent / "theirs.yaml").write_text("name: theirs\nuse: [home/own.py]\n")
    os.symlink(Path(run) / "config.json", home.parent / "linked.json")
    verbs = [
        ["generate", "a", "-m", run],
        ["chat", "-m", run, "--template", "plain", "--once", "a"],
        ["score", "my.txt", "-m", run],
        ["evaluate", "-m", run],
        ["show", run],
        ["show", f"{run}/config.json"],
        ["convert", run, "out", "--to", "heddle"],
        ["train", run],
        ["train", f"{run}/config.json"],
        ["train", "first", f"init={run}", "data=my.txt"],
        ["train", "../theirs.yaml"],
        ["generate", "a", "-m", f"{run}/checkpoints/step-00000002"],
    ]
    for words in verbs:
        another_process(monkeypatch)
        canary.unlink(missing_ok=True)
        capsys.readouterr()
        assert main(words) == UsageError.exit_code, words
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("at step 2")]
        assert len(lines) == 1 and "own.py, or --trust-run" in lines[0] and "--use" in lines[0], lines
        assert not canary.exists(), words
    with pytest.raises(UsageError, match="--trust-run"):
        heddle.load(run)
    assert not canary.exists() and not (home.parent / "another_user").exists()


def test_trust_is_for_once_or_by_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained()
    (kept,) = run.rglob("code/*/own.py")
    words = ["generate", "a", "-m", str(run), "--max-tokens", "2"]
    monkeypatch.setenv("HEDDLE_CONFIG", str(home.parent / "another_user"))
    another_process(monkeypatch)
    assert main([*words, "--trust-run"]) == 0
    another_process(monkeypatch)
    assert main(words) == 2  # it was for once
    assert heddle.load(run, trust_run=True).model is not None
    another_process(monkeypatch)
    assert main([*words, "--use", str(kept)]) == 0
    another_process(monkeypatch)
    assert main(words) == 0  # by name, it is remembered


def test_use_stands_in_a_config_and_in_overrides(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("sub").mkdir()
    overrides = "\n".join(["name: mine", "data: {sources: [{kind: text, path: my.txt}], split: {kind: tail}}"])
    Path("sub/own.yaml").write_text(
        f"{overrides}\nuse: [../own.py]\nobjective: focal\ntokenizer: byte\nrows: {{kind: packed, length: 32}}\n"
        "model: {kind: preset, name: maxout_lm, layers: 1, width: 16, heads: 2}\n"
        "training: {steps: 2, batch: 2}\nvalidation_rows: 2\n"
    )
    assert main(["train", "sub/own.yaml"]) == 2  # not trusted yet
    assert main(["train", "sub/own.yaml", "--use", "own.py"]) == 0
    another_process(monkeypatch)
    assert main(["train", "sub/own.yaml", "name=again"]) == 0
    assert len(list(Path("runs").rglob("code/*/own.py"))) == 2
    another_process(monkeypatch)
    assert main(["train", "first", "use=own.py", "objective=focal", "name=third", *WORDS[2:], "training.steps=1"]) == 0
    assert list(Path("runs/third").rglob("code/*/own.py"))


def test_code_that_a_run_does_not_use_is_not_recorded(home: Path) -> None:
    words = ["train", "first", "--use", "own.py", *WORDS[2:], "training.steps=1"]
    assert main(words) == 0
    assert json.loads(Path("runs/first/config.json").read_text())["use"] == []
    assert not Path("runs/first/code").exists()
