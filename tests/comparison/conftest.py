"""A suite small enough to be run in tests, and its results without an interruption."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WORDS = ("the", "cat", "sees", "a", "dog", "and", "old", "bird", "sings", "over", "red", "hills", "rivers", "run")
SETTINGS = [
    "data=text.txt", "tokenizer.vocab=280", "model.layers=1", "model.width=16", "model.heads=2", "rows.length=32",
    "training.batch=4", "validation_rows=16", "budget.steps=30", "seeds=2", "every.save=10", "hardware.dtype=float32",
    "data.split.fraction=0.3",
]  # fmt: skip
COMMAND = ["compare", "first", "norm:layer_norm", *SETTINGS]


def write_text_to_learn(folder: Path) -> None:
    """Write sentences of few words."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(6, 14))) for _ in range(600)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")


def heddle(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start a command of the library in a folder."""
    command = [sys.executable, "-m", "heddle", *words]
    return subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def result(process: "subprocess.Popen[str]") -> str:
    """Wait for a command that is to succeed; return what it printed."""
    text = process.communicate(timeout=250)[0]
    assert process.returncode == 0, text
    return text


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Return the folder of a small comparison that was not interrupted, and what it printed."""
    folder = tmp_path_factory.mktemp("small")
    write_text_to_learn(folder)
    text = result(heddle(folder, *COMMAND, "--processes", "1"))
    yield folder, text
    assert os.path.exists(folder)
