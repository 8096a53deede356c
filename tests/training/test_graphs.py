"""Compiled and replayed as graphs: a wish for a GPU, refused where a replay would read what another left."""

from pathlib import Path
from typing import Any

import pytest
from reliability.harness import tiny, trainer_for, write_text

from heddle.core import ConfigError, override
from heddle.core.system import choose_hardware
from heddle.models.presets import build
from heddle.training import RunConfig
from heddle.training.compiling import should_compile_run


def test_graphs_are_for_a_gpu_and_a_cpu_goes_on_without(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    config = tiny(
        text, training__steps=2, training__micro_batch=None, hardware__compile="graphs", hardware__device="cpu"
    )
    model = build("first", layers=1, width=16, heads=2, vocab=300, context=16)
    assert not should_compile_run(config, model, choose_hardware("cpu", "float32"))
    trainer = trainer_for(config, tmp_path / "run")
    trainer.fit()
    assert trainer.step == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rows": {"kind": "streams", "length": 8, "lanes": 4}}, "rows of the kind streams"),
        ({"rows": {"kind": "pairs"}}, "rows of the kind pairs"),
        ({"training.batch": 8, "training.micro_batch": 4}, "several micro-batches a step"),
    ],
)
def test_what_one_replay_would_leave_to_the_next_is_refused(changes: dict[str, Any], why: str) -> None:
    config = RunConfig()
    for path, value in changes.items():
        config = override(config, path, value)
    with pytest.raises(ConfigError, match=f"hardware.compile: want on, auto or off with {why}, got 'graphs'"):
        override(config, "hardware.compile", "graphs")
