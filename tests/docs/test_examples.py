"""The examples run: the notebook's cells, a part of one's own, a loop of one's own."""

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import heddle
from heddle.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = json.loads((EXAMPLES / "first.ipynb").read_text(encoding="utf-8"))
TINY = "model.layers=1 model.width=16 model.heads=2 tokenizer=byte rows.length=32 training.batch=2 validation_rows=2"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_user_code: Path) -> None:
    """Work in an empty folder with a text."""
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("".join(f"Line {i} of a text that says what line {i} is.\n" for i in range(200)))


def test_the_notebook_trains_plots_generates_and_saves() -> None:
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        exec(compile(cell, "first.ipynb", "exec"), names)
    assert names["run"].step == 60 and names["run"].stopped is None
    curve = names["Curve"]("loss")
    assert curve.points[-1][1] < curve.points[0][1] - 0.5  # it learns
    assert curve._repr_svg_().count("<polyline") == 1 and "nan" not in curve._repr_svg_()
    assert (Path("saved") / "checkpoints").is_dir()
    assert len(cells) >= 5 and cells[-1].startswith('folder = lm.save("saved")')


def test_the_notebook_is_stored_without_results_or_paths() -> None:
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in NOTEBOOK["cells"])
    assert not re.search(r"/(home|root|work|Users|tmp)/", json.dumps(NOTEBOOK))


def test_own_part_keeps_the_laws_and_trains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(EXAMPLES / "own_part.py")
    assert main(["check", file]) == 0
    told = capsys.readouterr().out
    assert "maxout" in told and "focal" in told and "broken" not in told
    monkeypatch.setattr(sys, "argv", [file, "my.txt", "training.steps=3", *TINY.split()])
    runpy.run_path(file, run_name="__main__")
    assert "[2 rows]" in capsys.readouterr().out
    assert list(Path("runs/maxout/code").rglob("own_part.py"))


def test_own_loop_trains_and_saves(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["own_loop.py", "my.txt", "runs/own", "--steps", "40", "--vocab", "400"])
    runpy.run_path(str(EXAMPLES / "own_loop.py"), run_name="__main__")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert losses[-1] < losses[0]
    assert main(["generate", "Line 1", "-m", "runs/own", "--max-tokens", "4"]) == 0
    assert heddle.load("runs/own").score(["Line 3 of a text"])[0].bits_per_byte < 4
