"""docs/retrieve_and_edit.md is real: its code and its commands run, at a small size."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from heddle.cli.main import main

TEXT = (Path(__file__).parents[2] / "docs" / "retrieve_and_edit.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", TEXT, re.DOTALL)
COMMANDS = [
    shlex.split(line)[1:] for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()
]
SMALL = ["tokenizer.vocab=300", "training.steps=2", "training.batch=8", "rows.batch=8", "hardware.device=cpu"]
SIZES = ["model.layers=1", "model.width=32", "model.heads=2", "model.hidden=32"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_CONFIG", str(tmp_path / "config"))


def run(words: list[str], *more: str) -> str:
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        assert main([*words, *more]) == 0, words
    return heard.getvalue()


def test_the_code_and_the_commands_run() -> None:
    names: dict[str, Any] = {}
    (first, _), (last, output) = CODE
    exec(compile(first, "retrieve_and_edit.md", "exec"), names)
    for words in COMMANDS:
        sizes = SIZES if words[0] == "train" and not any(word.startswith("model=") for word in words) else []
        found = run(words, *((*SMALL, *sizes) if words[0] == "train" else ()))
        if words[0] == "retrieve" and "-o" not in words:
            assert len(found.splitlines()) == (6 if "-k" in words else 2), words
    with contextlib.redirect_stdout(io.StringIO()) as heard:
        exec(compile(last, "retrieve_and_edit.md", "exec"), names)
    assert heard.getvalue() == output
    (shown,) = re.findall(r'^\{"text".*\}$', TEXT, re.MULTILINE)
    (row, *_), example = Path("edits.jsonl").read_text().splitlines(), json.loads(shown)
    assert json.loads(row) == example


def test_the_benchmark_that_it_names_is_there() -> None:
    assert (Path(__file__).parents[2] / "benchmarks" / "retrieve_and_edit.py").is_file()
