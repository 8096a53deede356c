"""Optimizers: AdamW, Adafactor, Muon and SGD, learning-rate schedules, gradient guard, averages of weights."""

from heddle.training.optimizers.inverse_square_root import InverseSquareRootConfig, RsqrtConfig
from heddle.training.optimizers.muon import Muon
from heddle.training.optimizers.optimizers import (
    AdafactorConfig,
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    MuonConfig,
    OptimizerConfig,
    Optimizers,
    ScheduleConfig,
    SGDConfig,
    StableDecayConfig,
    global_norm,
)
from heddle.training.optimizers.stacked import StackedOptimizer
from heddle.training.optimizers.weight_averaging import (
    MovingAverageConfig,
    PlainAverageConfig,
    TriggeredAverageConfig,
    WeightAverage,
    WeightAverageConfig,
)
