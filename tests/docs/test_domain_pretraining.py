"""docs/domain_pretraining.md is real: its commands run in order, at a small size; its tables name what there is."""

import contextlib
import io
import random
import re
import shlex
from pathlib import Path

import pytest
from reliability.harness import write_text

from heddle.cli.main import main
from heddle.core import kinds
from heddle.training import InitVocabularyConfig

TEXT = (Path(__file__).parents[2] / "docs" / "domain_pretraining.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
SMALL = "training.steps=2 training.batch=2 validation_rows=2 rows.length=256 hardware.device=cpu"


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "general.txt", lines=120)
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghijklmnopqrst", k=draw.randint(4, 9))) for _ in range(150)]
    for name, lines in (("domain", 400), ("held_out", 6)):
        texts = (" ".join(draw.choices(words, k=9)) for _ in range(lines))
        (tmp_path / f"{name}.txt").write_text("\n".join(texts) + "\n")
    assert len(LINES) == 7
    for line in LINES:
        words, more = shlex.split(line, comments=True)[1:], []
        if words[0] == "train":
            more = SMALL.split()
            more += ["model.layers=1", "model.width=16", "model.heads=2"] if "init=" not in line else []
            more += ["tokenizer.vocab=270"] if "init=" not in line else []
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main([*words, *more]) == 0, line
        if "init_vocabulary=extended" in line:
            assert "vocabulary of 770 tokens: 270 begin as one of the model in init, 500 begin" in said.getvalue()
        if words[0] == "evaluate":
            assert "loss_per_character" in said.getvalue()
    assert (tmp_path / "extended-hf" / "config.json").is_file()


def test_every_kind_is_told() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) >= set(kinds(InitVocabularyConfig))
