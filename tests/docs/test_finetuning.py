"""docs/finetuning.md is real: its commands run from a small model, and its code prints what the page says.

`PYTHONPATH=tests python tests/docs/test_finetuning.py` writes the page's outputs anew, after its code was changed.
"""

import contextlib
import io
import json
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

import pytest
from reliability.harness import tiny, trainer_for, write_text

from heddle.cli.main import main
from heddle.core import fields_of
from heddle.nn.adapters import LoraConfig

PAGE = Path(__file__).parents[2] / "docs" / "finetuning.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"(```python\n)(?P<code>.*?)(```\n\n```text\n)(?P<output>.*?)(```\n)", re.DOTALL)
SHORT = ["training.steps=2", "training.batch=2", "rows.length=24", "validation_rows=2", "hardware.device=cpu"]


def run_blocks() -> str:
    """Return the page with the outputs that its blocks really have, run in order in a folder of their own."""
    names: dict[str, Any] = {"__name__": "finetuning"}

    def printed(match: re.Match[str]) -> str:
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            exec(compile(match["code"], str(PAGE), "exec"), names)
        return f"{match[1]}{match['code']}{match[3]}{heard.getvalue()}{match[5]}"

    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return BLOCK.sub(printed, TEXT)
        finally:
            os.chdir(here)


def test_the_code_prints_what_the_page_says() -> None:
    assert run_blocks() == TEXT


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny(write_text(tmp_path / "mine.txt"), training__steps=2, rows__length=24, model__layers=2)
    trainer_for(config, tmp_path / "runs" / "first").fit()
    chats = [{"dialog": ["Hi!", f"Good day {i}."]} for i in range(60)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    lines = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        more = SHORT if words[0] == "train" else ["--max-tokens", "3"] if words[0] in ("generate", "chat") else []
        with contextlib.redirect_stdout(io.StringIO()):
            assert main([*words, *more]) == 0, line


def test_every_setting_is_told() -> None:
    told = {name for row in re.findall(r"^\| (`.*?`) \|", TEXT, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert set(fields_of(LoraConfig())) <= told


if __name__ == "__main__":
    PAGE.write_text(run_blocks(), encoding="utf-8")
