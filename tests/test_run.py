"""heddle.train: the verb's path in Python; a run with its model, metrics and folder, also interrupted and resumed."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import heddle
from heddle.cli.main import main
from heddle.core import UsageError
from heddle.run import Table
from heddle.training.loop import Callback, Report, Trainer

TINY = {
    **{"model.layers": 1, "model.width": 16, "model.heads": 2, "tokenizer": "byte", "rows.length": 32},
    **{"training.batch": 2, "training.steps": 6, "validation_rows": 2, "hardware.device": "cpu"},
    **{"every.log": 2, "every.save": 3, "every.validate": 3, "every.sample": 6},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder with a text."""
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("".join(f"Line {i} of a text that says what line {i} is.\n" for i in range(200)))


class Count(Callback):
    """Counts steps; at one of them, something happens."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.steps = at, 0

    def after_step(self, trainer: Trainer, report: Report) -> None:
        self.steps += 1
        if trainer.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)  # the stop button


def test_a_run_has_model_metrics_and_folder(capsys: pytest.CaptureFixture[str]) -> None:
    count = Count()
    run = heddle.train("first", data="my.txt", overrides=TINY, callbacks=[count])
    out = capsys.readouterr().out
    assert "run runs/first" in out and "\rstep 4/6  loss" in out and out.endswith("\n")
    assert (run.folder, run.step, run.stopped, count.steps) == (Path("runs/first"), 6, None, 6)
    assert isinstance(run.lm.generate("Line", max_tokens=3), str) and run.lm is run.lm
    assert [step for step, loss in zip(run.metrics["step"], run.metrics["loss"], strict=True) if loss] == [2, 4, 6]
    assert main(["generate", "Line", "-m", "first", "--max-tokens", "3"]) == 0
    assert repr(run) == "<Run runs/first: 6 of 6 steps>"


def test_it_is_the_path_of_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    heddle.train("first", data=Path("my.txt"), overrides=TINY | {"name": "python"}, progress=False)
    assert capsys.readouterr().out == ""
    words = [f"{name}={value}" for name, value in TINY.items()]
    assert main(["train", "first", "data=my.txt", "name=verb", *words]) == 0
    ours, theirs = (heddle.load(f"runs/{name}").model.state_dict() for name in ("python", "verb"))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_an_interrupt_leaves_a_run_that_resumes_exactly() -> None:
    whole = heddle.train("first", data="my.txt", overrides=TINY | {"name": "whole"}, progress=False)
    cut = heddle.train("first", data="my.txt", overrides=TINY | {"name": "cut"}, callbacks=[Count(at=1)])
    assert cut.step == 2 and cut.stopped == "signal SIGINT" and "stopped: signal SIGINT" in repr(cut)
    resumed = heddle.train(cut.folder, progress=False)
    assert resumed.step == 6 and resumed.stopped is None
    ours, theirs = resumed.lm.model.state_dict(), whole.lm.model.state_dict()
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_it_works_in_another_thread() -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(heddle.train("first", data="my.txt", overrides=TINY | {"training.steps": 1}, progress=False))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].step == 1


def test_pandas_gives_the_metrics_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = heddle.train("first", data="my.txt", overrides=TINY | {"training.steps": 2}, progress=False)
    (tmp_path / "pandas.py").write_text("class DataFrame(list):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    try:
        assert type(run.metrics).__name__ == "DataFrame" and run.metrics[0]["step"] == 2
    finally:
        sys.modules.pop("pandas", None)  # other tests have none


def test_wrong_arguments_are_one_line() -> None:
    for words, arguments in (
        (r"no recipe, config file or run is called 'frist'; did you mean 'first'", {"recipe": "frist"}),
        (r"callbacks: want a list of callbacks, got \[3\]", {"callbacks": [3]}),
        (r"callbacks: want a list of callbacks", {"callbacks": Count()}),
        (r"path: want a path or a name, got 3", {"recipe": 3}),
        (r"train: want a recipe", {"recipe": None}),
        (r"training.stepps", {"overrides": {"training.stepps": 2}}),
    ):
        with pytest.raises(heddle.HeddleError, match=words):
            heddle.train(**arguments)  # type: ignore[arg-type]
    assert not Path("runs").exists()


def test_a_table_prints_its_numbers() -> None:
    table = Table({"step": n, "loss": n / 3} if n % 2 else {"step": n, "other": "<a>"} for n in range(20))
    lines = repr(table).splitlines()
    assert lines[0].split() == ["step", "other", "loss"] and lines[-1] == "[20 rows]" and len(lines) == 15
    assert len({len(line) for line in lines[:-1]}) == 1  # aligned
    assert "&lt;a&gt;" in table._repr_html_() and "<a>" not in table._repr_html_()
    assert table["loss"][:2] == [None, 1 / 3] and table[1]["step"] == 1
    with pytest.raises(UsageError, match="want one of step, other, loss, got 'nothing'"):
        table["nothing"]
