"""heddle bench train: one command, no data, numbers for people and for programs."""

import json

import pytest

from heddle.cli.main import main

TINY = ["model.layers=1", "model.width=32", "rows.length=32", "training.batch=2", "tokenizer.vocab=300", "--steps", "2"]
DEVICE = ["hardware.device=cpu", "hardware.dtype=float32"]


def test_a_recipe_is_measured_without_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["bench", "train", "first", *TINY, *DEVICE, "training.activation_checkpointing=selective", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["tokens_per_step"] == 64 and found["tokens_per_second"] > 0 and not found["compiled"]
    assert {"mfu", "quartiles", "peak_bytes", "first_step_seconds", "breakdown"} <= found.keys()


def test_the_table_tells_speed_and_kinds_of_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", *TINY, *DEVICE]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("tokens/s", "MFU", "matrix products", "optimizer"))


def test_a_preset_takes_the_place_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [word for word in TINY if not word.startswith("tokenizer")]
    assert main(["bench", "train", "model=gru_lm", "model.vocab=64", *sizes, *DEVICE, "training.reduction=fast"]) == 0
    told = capsys.readouterr()
    assert "dtype=float32" in told.out and "peak memory" in told.out and "weights; the first step" in told.err
    assert main(["bench", "train", "gru_lm"]) == 2
    assert "model=gru_lm" in capsys.readouterr().err
    assert main(["bench", "train", "model=gru_ml"]) == 2
    assert "did you mean 'gru_lm'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["nonesuch"], ["first", "model.widht=3"], ["first", "training.activation_checkpointing=all"]]
)
def test_a_wrong_word_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
