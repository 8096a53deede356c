"""docs/objectives.md is real: its commands run at a small size, and its tables say what the code does."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from reliability.harness import write_text

from heddle.cli.main import main
from heddle.core import kinds
from heddle.objectives import ObjectiveConfig
from heddle.objectives.span_corruption import corrupted_lengths

TEXT = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")
SMALL = "training.steps=2 training.batch=2 model.layers=1 model.width=32 model.heads=2 validation_rows=2 rows.length=48"
LINES = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_the_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = write_text(tmp_path / "my.txt", lines=400).read_text().splitlines()
    texts = [" ".join(lines[first : first + 4]) for first in range(0, 400, 4)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = shlex.split(line, comments=True)[1:]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*words, *SMALL.split(), "hardware.device=cpu"]) == 0, line


def test_the_lengths_of_span_corruption() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 3
    for row in rows:
        length, *sides = map(int, row)
        assert corrupted_lengths(length, 0.15, 3.0) == tuple(sides)


def test_every_objective_is_in_the_table() -> None:
    own = {kind for kind, cls in kinds(ObjectiveConfig).items() if cls.__module__.startswith("heddle.")}
    assert own <= set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
