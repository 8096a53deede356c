"""Training: run, step, trainer, optimizers, schedules, callbacks, and data parallel applied from outside."""

from heddle.training.average import (
    AverageConfig,
    MovingAverageConfig,
    PlainAverageConfig,
    TriggeredAverageConfig,
)
from heddle.training.callbacks import Diverged, Writer
from heddle.training.environment import environment
from heddle.training.guard import GuardConfig
from heddle.training.horizons import GrowingHorizonConfig, HorizonConfig, WholeHorizonConfig
from heddle.training.measure import Speed, measure, rehearse
from heddle.training.optimizers import AdamWConfig, MuonConfig, OptimizerConfig, Optimizers, SGDConfig
from heddle.training.parallel import Team
from heddle.training.run import (
    EveryConfig,
    HardwareConfig,
    KeepConfig,
    RunConfig,
    ShareConfig,
    StopConfig,
    TrainingConfig,
)
from heddle.training.schedules import (
    ConstantConfig,
    CosineConfig,
    InverseSquareRootConfig,
    ScheduleConfig,
    StableDecayConfig,
)
from heddle.training.setup import Surroundings, set_up
from heddle.training.step import Losses, Report, Step
from heddle.training.trainer import Callback, Trainer

__all__ = [
    "AdamWConfig",
    "AverageConfig",
    "Callback",
    "ConstantConfig",
    "CosineConfig",
    "Diverged",
    "EveryConfig",
    "GrowingHorizonConfig",
    "GuardConfig",
    "HardwareConfig",
    "HorizonConfig",
    "InverseSquareRootConfig",
    "KeepConfig",
    "Losses",
    "MovingAverageConfig",
    "MuonConfig",
    "OptimizerConfig",
    "Optimizers",
    "PlainAverageConfig",
    "Report",
    "RunConfig",
    "SGDConfig",
    "ScheduleConfig",
    "ShareConfig",
    "Speed",
    "StableDecayConfig",
    "Step",
    "StopConfig",
    "Surroundings",
    "Team",
    "Trainer",
    "TrainingConfig",
    "TriggeredAverageConfig",
    "WholeHorizonConfig",
    "Writer",
    "environment",
    "measure",
    "rehearse",
    "set_up",
]
