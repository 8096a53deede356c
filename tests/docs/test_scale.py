"""docs/scale.md is real: its first command and its Python run, its other commands mean a study."""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from heddle.cli.main import main
from heddle.comparison.scaling import LargerConfig, ScaleConfig, parse_words
from heddle.core import encode
from heddle.recipes import RECIPES

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Return the words of each `heddle scale` on the page."""
    lines = re.findall(r"^heddle scale(.*)$", PAGE, re.MULTILINE)
    return [shlex.split(line.partition("#")[0]) for line in lines]


def test_the_toy_of_the_page_is_killed_goes_on_runs_in_python_predicts_and_is_graded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole road: a plan, runs, SIGKILL in the middle, the rest, Python, a prediction, its test, the report."""
    monkeypatch.chdir(tmp_path)
    folder, toy = tmp_path / "scaling" / "first", ["scale", *commands()[0], "--processes", "1"]
    ledger = folder / "runs.jsonl"
    done = run_and_kill(toy, ledger)
    assert main(toy) == 0
    text = capsys.readouterr().out
    assert (
        "one epoch is " in text and f"12 runs (search and grid), {12 - done} to go" in text and "time: about " in text
    )
    lines = ledger.read_text().splitlines()
    assert len({json.loads(line)["key"] for line in lines}) == len(lines) == 12
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(source, "docs/scale.md", "exec"), found)  # the page's own text: the same study, so nothing is trained
    assert [row["flops"] for row in found["table"]][:3] == [1e9, 2e9, 4e9]
    assert main(["scale", str(folder), "--test"]) == 2
    assert "no prediction yet; give --predict first" in capsys.readouterr().err
    for step in ("--predict", "--test"):
        assert main(["scale", str(folder), step, "--processes", "1"]) == 0
    assert "side the band" in capsys.readouterr().out
    assert ledger.read_text().splitlines()[:12] == lines  # nothing was run twice
    check_report(folder)


def run_and_kill(words: list[str], ledger: Path) -> int:
    """Start a command, kill it after its first finished run; return how many are finished."""
    process = subprocess.Popen([sys.executable, "-m", "heddle", *words], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 200
    while not (ledger.exists() and ledger.read_text().count("\n")) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    process.wait()
    done = ledger.read_text().count("\n")
    assert 1 <= done < 12
    return done


def check_report(folder: Path) -> None:
    """Look for every part of the report, which loads nothing from elsewhere."""
    page = (folder / "report.html").read_text()
    for part in ("Prediction and test", "id='tests'", "Best size over compute", "variable projection", "Every run"):
        assert part in page
    assert not re.search(r"(src|href)=[\"']?http", page)
    assert (folder / "loss.svg").read_text().startswith('<?xml version="1.0"')
    for name in ("results.csv", "laws.json", "prediction.json", "grade.json"):
        assert name in PAGE and (folder / name).exists()


def test_the_other_commands_mean_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(json.dumps(encode(RECIPES["characters"]())))
    (tmp_path / "my.txt").write_text("a text\n")
    counts = [len(parse_words(words).architectures) for words in commands() if not any("scaling/" in w for w in words)]
    assert counts == [1, 1, 2, 4]


def test_every_setting_is_in_the_table() -> None:
    table = set(re.findall(r"`([a-z.]+)`", "".join(line for line in PAGE.splitlines() if line.startswith("| `"))))
    want = {name for name in vars(ScaleConfig()) if name != "larger"} | {
        f"larger.{name}" for name in vars(LargerConfig())
    }
    assert want <= table


def test_commands_of_the_record_are_there() -> None:
    root = Path(__file__).parents[2]
    for script in re.findall(r"benchmarks/\S+\.(?:py|sh)", PAGE):
        assert (root / script).exists(), script
    parts = set(re.findall(r"h200_scale\.sh \S+ OUT (\w+)", PAGE))
    text = (root / "benchmarks" / "h200_scale.sh").read_text()
    assert parts and all(f"\n  {part})" in text for part in parts)
