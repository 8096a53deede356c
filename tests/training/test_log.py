"""Metrics: JSON lines that a resumed run continues without gaps, repeats or broken lines."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
from reliability.harness import tiny, trainer_for, write_text

from heddle.core import EnvironmentFault
from heddle.models import training_flops
from heddle.models.presets import PresetConfig
from heddle.objectives import MaskedTokenConfig
from heddle.training.callbacks import Log, Metrics
from heddle.training.callbacks.log import _finite


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def written(path: Path, count: int) -> None:
    metrics = Metrics(path)
    metrics.begin(0)
    for step in range(1, count + 1):
        metrics.write(step=step, loss=1 / step)
    metrics.close()


def test_a_resumed_run_drops_the_lines_past_its_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 10)
    metrics = Metrics(path)
    metrics.begin(6)
    metrics.write(step=7, loss=0.5)
    metrics.close()
    assert steps(path) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("cut", [1, 2, 10, 25])
def test_a_last_line_cut_short_never_spoils_the_next(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 5)
    path.write_bytes(path.read_bytes()[:-cut])  # by one: only the line's end is lost
    metrics = Metrics(path)
    metrics.begin(5)
    metrics.write(step=6)
    metrics.close()
    found = steps(path)
    assert found[:4] == [1, 2, 3, 4] and found[-1] == 6


def test_lines_that_are_not_ours_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnonsense\n[]\n"step"\n{"loss": 2}\n\xff\xfe\n{"step": "x"}\n{"step": 2}\n')
    metrics = Metrics(path)
    metrics.begin(5)
    metrics.close()
    assert steps(path) == [1, 2]


def test_a_process_that_does_not_lead_writes_nothing(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(step=1)
    metrics.close()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_in_one_line(tmp_path: Path) -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics._file = Full()  # type: ignore[assignment]
    with pytest.raises(EnvironmentFault, match=r"metrics\.jsonl: cannot be written: No space left on device"):
        metrics.write(step=1)
    metrics.close()
    with pytest.raises(EnvironmentFault, match="cannot be written: No such file or directory"):
        Metrics(tmp_path / "gone" / "metrics.jsonl").begin(0)


def test_what_is_not_finite_is_null_since_json_has_no_word_for_it() -> None:
    assert [_finite(x) for x in (1.5, float("nan"), float("inf"), -float("inf"))] == [1.5, None, None, None]


def test_a_run_writes_every_number_it_shows(tmp_path: Path) -> None:
    trainer = trainer_for(tiny(write_text(tmp_path / "text.txt"), training__steps=4, every__log=2), tmp_path / "run")
    trainer.fit()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "loss" in line]
    assert [line["step"] for line in logged] == [2, 4]
    assert set(logged[0]) == {"step", "loss", "norm", "learning_rate", "tokens_per_second", "mfu", "skipped"}
    (held_out,) = (line for line in lines if "validation_loss" in line)
    assert set(held_out) == {"step", "validation_loss", "perplexity", "bits_per_byte"} and held_out["step"] == 4


def test_mfu_reckons_with_every_token_that_is_read_not_with_those_that_are_hidden_alone(tmp_path: Path) -> None:
    """A run of masked tokens counts a fifth of its tokens as targets, and computes with all of them."""
    config = tiny(write_text(tmp_path / "text.txt"), training__steps=1, every__log=1)
    encoder = PresetConfig(name="bert-base-masked", layers=1, width=32, heads=2)
    config = replace(config, model=encoder, objective=MaskedTokenConfig(mask_rate=0.25))
    trainer = trainer_for(config, tmp_path / "run")
    (log,) = (one for one in trainer.callbacks if isinstance(one, Log))
    assert log.flops == 4 * training_flops(trainer.model, trainer.loader.plan.mean_length)
