"""The training loop: trainer, step, gradient accumulation, data parallel, compilation, checkpointing of activations."""

from heddle.training.loop.activation_checkpointing import Recompute, recompute
from heddle.training.loop.gradient_accumulation import FastSums, FixedSums
from heddle.training.loop.parallel import Team
from heddle.training.loop.signals import Signals
from heddle.training.loop.step import UPDATE, Losses, Report, Step
from heddle.training.loop.trainer import Callback, Trainer
from heddle.training.loop.window_warmup import GrowingHorizonConfig, HorizonConfig, WholeHorizonConfig

__all__ = [
    "UPDATE",
    "Callback",
    "FastSums",
    "FixedSums",
    "GrowingHorizonConfig",
    "HorizonConfig",
    "Losses",
    "Recompute",
    "Report",
    "Signals",
    "Step",
    "Team",
    "Trainer",
    "WholeHorizonConfig",
    "recompute",
]
