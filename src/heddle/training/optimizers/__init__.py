"""Optimizers: AdamW, Muon and SGD, learning-rate schedules, gradient guard, averages of weights."""

from heddle.training.optimizers.muon import Muon
from heddle.training.optimizers.optimizers import (
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    InverseSquareRootConfig,
    MuonConfig,
    OptimizerConfig,
    Optimizers,
    ScheduleConfig,
    SGDConfig,
    StableDecayConfig,
    global_norm,
)
from heddle.training.optimizers.weight_averaging import (
    MovingAverageConfig,
    PlainAverageConfig,
    TriggeredAverageConfig,
    WeightAverage,
    WeightAverageConfig,
)
