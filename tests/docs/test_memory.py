"""docs/memory.md is real: its code and its commands run, at a small size."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from heddle.cli.main import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```\n(?:\n```text\n(.*?)```)?", TEXT, re.DOTALL)
SMALL = ["tokenizer={kind: byte}", "training.steps=4", "hardware.device=cpu", "every.sample=1000000"]
SIZES = {
    "small": ["model.layers=1", "model.width=32", "model.heads=2", "rows.length=64", "training.batch=4"],
    "segments": ["model.layers=1", "model.width=32", "model.heads=2", "model.hidden=32"],
}


def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_CONFIG", str(tmp_path / "config"))
    names: dict[str, Any] = {}
    said: dict[str, str] = {}
    for kind, code, output in BLOCKS:
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            if kind == "python":
                exec(compile(code, "memory.md", "exec"), names)
                assert heard.getvalue() == output
                continue
            for line in code.splitlines():
                words = shlex.split(line)[1:]
                name = next((word.partition("=")[2] for word in words if word.startswith("name=")), "")
                assert main([*words, *(SIZES[name] + SMALL if words[0] == "train" else [])]) == 0, line
                said[line] = heard.getvalue()
    assert len(said) == 14
    assert any("use              --memory fleet-memory --memory-weight" in one for one in said.values())
    assert json.loads((tmp_path / "loss.json").read_text())["length"] == 8 * 64


def test_the_benchmarks_that_it_names_are_there() -> None:
    for name in re.findall(r"benchmarks/\w+\.py", TEXT):
        assert (ROOT / name).is_file()
