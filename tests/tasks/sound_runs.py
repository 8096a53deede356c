"""Runs on sounds, trained in seconds: letters as tones, by a CTC encoder; and a model with a decoder beside it."""

from pathlib import Path
from typing import Any

from data.sounds import RATE, write_folder

import heddle

SMALL: dict[str, Any] = {
    "data.sources.0.sample_rate": RATE,
    "rows.features": {"kind": "log_mel", "mels": 20, "sample_rate": RATE},
    "rows.augment": [],
    "rows.length": 12,
    "rows.source_length": 120,
    "model.layers": 1,
    "model.width": 48,
    "training.batch": 8,
    "training.schedule.warmup": 20,
    "training.optimizer.learning_rate": 3e-3,
    "hardware.device": "cpu",
    "hardware.dtype": "float32",
    "every.sample": 100_000,
}


def of_steps(steps: int) -> dict[str, Any]:
    """Return the settings of a small Transformer and of a run of so many steps."""
    each = {name: steps for name in ("training.steps", "every.validate", "every.save")}
    return {"model.heads": 2, "model.hidden": 96} | each


def train_ctc(folder: Path, steps: int = 100, **more: Any) -> "heddle.Run":
    """Train a CTC encoder on a folder of sounds, which is written first."""
    if not (folder / "sounds").exists():
        write_folder(folder / "sounds", 100)
    own, runs = SMALL | of_steps(steps) | more, folder / "runs"
    return heddle.train("transcribe_ctc", data=folder / "sounds", overrides=own, runs=runs, progress=False)


def train_joint(folder: Path, steps: int = 4, **more: Any) -> "heddle.Run":
    """Train an encoder-decoder with CTC for a few steps."""
    own = (
        SMALL
        | of_steps(steps)
        | {"training.average_last": 0, "training.schedule.warmup": 2, "every.sample": steps}
        | more
    )
    return heddle.train("transcribe", data=folder / "sounds", overrides=own, runs=folder / "runs", progress=False)
