"""Training: run, step, trainer, optimizers, schedules, callbacks, and data parallel applied from outside."""

from heddle.training import callbacks, loop, optimizers
from heddle.training.measure import Speed, measure, rehearse
from heddle.training.run_config import EveryConfig, HardwareConfig, KeepConfig, RunConfig, ShareConfig, TrainingConfig
from heddle.training.setup import Surroundings, set_up

__all__ = [
    "EveryConfig",
    "HardwareConfig",
    "KeepConfig",
    "RunConfig",
    "ShareConfig",
    "Speed",
    "Surroundings",
    "TrainingConfig",
    "callbacks",
    "loop",
    "measure",
    "optimizers",
    "rehearse",
    "set_up",
]
