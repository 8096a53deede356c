"""Optimizers: AdamW, Adafactor, Muon and SGD, learning-rate schedules, gradient guard, averages of weights."""

from heddle.training.optimizers.muon import Muon
from heddle.training.optimizers.optimizers import (
    AdafactorConfig,
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
    RsqrtConfig,
    ScheduleConfig,
    StableDecayConfig,
)
from heddle.training.optimizers.stacked import StackedOptimizer
from heddle.training.optimizers.weight_averaging import (
    MovingAverageConfig,
    PlainAverageConfig,
    TriggeredAverageConfig,
    WeightAverage,
    WeightAverageConfig,
)
