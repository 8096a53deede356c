"""Callbacks: everything that happens now and then during training."""

from heddle.training.callbacks.callback_config import CallbackConfig
from heddle.training.callbacks.log import Log, Metrics, Sample, SampleWriter, TensorBoard
from heddle.training.callbacks.save import Save
from heddle.training.callbacks.stop import Diverged, EarlyStopping, StopOnDivergence, TimeLimit
from heddle.training.callbacks.threads import AdaptThreads
from heddle.training.callbacks.validate import HeldOutRows, StartAveraging, Validate
from heddle.training.callbacks.window_warmup import (
    GrowingWindowConfig,
    NoWindowWarmupConfig,
    WindowWarmup,
    WindowWarmupConfig,
)
