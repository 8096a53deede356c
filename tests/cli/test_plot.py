"""heddle plot and heddle list: what run folders tell, in plain text of 80 columns, as SVG and as a list."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli.runs import save_run

from heddle.cli.curves import Curve, draw
from heddle.cli.list import find_runs
from heddle.cli.main import main


def say(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run a command; return what it wrote."""
    assert main(list(words)) == code
    heard = capsys.readouterr()
    return heard.err if code else heard.out


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs with metrics, one of which was cut short."""
    monkeypatch.chdir(tmp_path)
    for name, last in (("one", 50), ("two", 30)):
        folder = tmp_path / "runs" / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        lines = [{"step": step, "loss": 7.0 - step / 20, "norm": None} for step in range(10, last + 1, 10)]
        text = "".join(json.dumps(line) + "\n" for line in [*lines, {"step": last, "validation_loss": 4.75}])
        (folder / "metrics.jsonl").write_text(text + '{"step": 60, "lo')
    return tmp_path / "runs"


def test_curves_are_drawn_in_80_columns_without_colour(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = say(capsys, "plot", "one", "two")
    assert shown.isascii() and all(len(line) <= 80 for line in shown.splitlines())
    assert "* one loss: 4.5 at step 50" in shown and "x two validation_loss: 4.75 at step 30" in shown
    first, *_, last = [line for line in shown.splitlines() if "|" in line]
    assert first.split("|")[0].strip() == "6.5" and last.split("|")[0].strip() == "4.5"
    assert first.count("+") == 1 and last.rstrip().endswith("*"), "the loss falls from left to right"


def test_a_curve_that_stays_level_is_a_line() -> None:
    lines = list(draw([Curve("level", [(step, 2.0) for step in range(1, 100)])], 80))
    assert sum("*" in line.split("|")[-1] for line in lines if "|" in line) == 1


def test_svg_is_whole_and_names_the_curves(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(capsys, "plot", "one", "runs/two", "--metric", "loss", "--svg", "loss.svg")
    root = ElementTree.fromstring(Path("loss.svg").read_text())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [5, 3]
    assert {"one loss", "two loss"} <= {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["plot", "ones"], "'one'"),
        (["plot", "one", "--metric", "los"], "'loss'"),
        (["plot", "one", "--metric", "norm"], "has no metric 'norm'"),
        (["plot", "one", "--svg", "nowhere/x.svg"], "no such folder"),
    ],
)
def test_wrong_names_are_one_line(words: list[str], hint: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint in say(capsys, *words, code=2)


def test_runs_are_listed_with_step_loss_date_and_size(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "two" / "big.bin").write_bytes(bytes(2_500_000))
    shown = say(capsys, "list", "runs").splitlines()
    row = next(line for line in shown if "two" in line)
    assert "step 30" in row and "held-out loss 4.750" in row and "2.5 MB" in row and "20" in row
    assert shown[0] == "runs" and len(shown) == 3


def test_what_cannot_be_read_does_not_stop_the_list(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "three").mkdir()
    (runs / "three" / "config.json").symlink_to("config.json")  # a circle
    assert {run.name for run in find_runs(runs)} == {"one", "two"}


def test_best_is_an_option_of_every_verb_that_takes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in ("generate", "chat", "score", "rescore", "correct", "translate", "evaluate", "convert"):
        assert "--best" in say(capsys, verb, "-h")
    save_run(Path("runs/one"), steps=(10, 20))  # of which the first has the lower loss
    (tmp_path / "text.txt").write_text("some text to score\n")
    newest, best = (say(capsys, "score", "text.txt", *more) for more in ([], ["--best"]))
    assert newest != best
    assert best == say(capsys, "score", "text.txt", "-m", "runs/one/checkpoints/step-00000010")


def test_h_is_help_everywhere_and_completion_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["train"], ["data", "prepare"], ["tokenizer", "train"], ["help"], ["list"], ["plot"]):
        assert say(capsys, *words, "-h") == say(capsys, *words, "--help")
    monkeypatch.setenv("_HEDDLE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "heddle ge")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == ["generate"]
