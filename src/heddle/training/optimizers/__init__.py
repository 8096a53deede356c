"""Optimizers: AdamW, Muon and SGD, learning-rate schedules, gradient guard, averages of weights."""

from heddle.training.optimizers.guard import Guard, GuardConfig
from heddle.training.optimizers.muon import Muon
from heddle.training.optimizers.optimizers import (
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    Optimizers,
    SGDConfig,
    global_norm,
)
from heddle.training.optimizers.schedules import (
    ConstantConfig,
    CosineConfig,
    InverseSquareRootConfig,
    ScheduleConfig,
    StableDecayConfig,
)
from heddle.training.optimizers.weight_averaging import (
    Average,
    AverageConfig,
    MovingAverageConfig,
    PlainAverageConfig,
    TriggeredAverageConfig,
)

__all__ = [
    "AdamWConfig",
    "Average",
    "AverageConfig",
    "ConstantConfig",
    "CosineConfig",
    "Guard",
    "GuardConfig",
    "InverseSquareRootConfig",
    "MovingAverageConfig",
    "Muon",
    "MuonConfig",
    "OptimizerConfig",
    "Optimizers",
    "PlainAverageConfig",
    "SGDConfig",
    "ScheduleConfig",
    "StableDecayConfig",
    "TriggeredAverageConfig",
    "global_norm",
]
