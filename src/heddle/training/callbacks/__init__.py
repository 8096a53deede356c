"""Callbacks: everything that happens now and then during training, one file each."""

from heddle.training.callbacks.begin_averaging import BeginAverage
from heddle.training.callbacks.log import Log, Metrics
from heddle.training.callbacks.sample import Sample, Writer
from heddle.training.callbacks.save import Save
from heddle.training.callbacks.stop import Diverged, StopWhenBad, StopWhenFlat, StopWhenLate
from heddle.training.callbacks.tensorboard import Board
from heddle.training.callbacks.validate import HeldOut, Validate
from heddle.training.callbacks.window_warmup import Widen

__all__ = [
    "BeginAverage",
    "Board",
    "Diverged",
    "HeldOut",
    "Log",
    "Metrics",
    "Sample",
    "Save",
    "StopWhenBad",
    "StopWhenFlat",
    "StopWhenLate",
    "Validate",
    "Widen",
    "Writer",
]
