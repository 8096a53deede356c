"""The walk on docs/walk.md is real: its blocks run in order, and print what the page says they print.

`python tests/docs/test_walk.py` writes the page's outputs anew, after its code was changed.
"""

import contextlib
import importlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "walk.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)


def blocks(page: str) -> Iterator[tuple[int, str, str]]:
    """Yield each block's line number, its code and the output that the page shows."""
    for match in BLOCK.finditer(page):
        yield page.count("\n", 0, match.start()) + 2, match["code"], match["output"] or ""


def printed(code: str, line: int, names: dict[str, Any]) -> str:
    """Run a block and return what it prints; a fault is told with the page's own line."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), names)
    return heard.getvalue()


def walked(page: str) -> str:
    """Return the page with the outputs that its blocks really have."""
    names: dict[str, Any] = {"__name__": "walk"}
    outputs = iter([printed(code, line, names) for line, code, _ in blocks(page)])

    def filled(match: re.Match[str]) -> str:
        output = next(outputs)
        return f"```python\n{match['code']}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return BLOCK.sub(filled, page)


def test_the_walk_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "walk"}
    for line, code, output in blocks(PAGE.read_text(encoding="utf-8")):
        assert printed(code, line, names) == output, f"{PAGE.name}:{line}"


def test_the_walk_passes_every_room() -> None:
    code = "".join(code for _, code, _ in blocks(PAGE.read_text(encoding="utf-8")))
    for room in ("core", "text", "data", "nn", "models", "objectives", "training", "checkpoints", "decoding", "tasks"):
        assert f"from heddle.{room}" in code, room
    for name in re.findall(r"from (heddle\S*) import", code):
        assert "__path__" in vars(importlib.import_module(name)), f"the walk imports {name}, not its package"


def test_a_wrong_output_is_noticed() -> None:
    page = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    assert walked(page) == page.replace("3", "2") != page


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        PAGE.write_text(walked(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
