"""Callbacks: everything that happens now and then during training, one file each."""

from heddle.training.callbacks.begin_averaging import StartAveraging
from heddle.training.callbacks.log import Log, Metrics
from heddle.training.callbacks.sample import Sample, SampleWriter
from heddle.training.callbacks.save import Save
from heddle.training.callbacks.stop import Diverged, EarlyStopping, StopOnDivergence, TimeLimit
from heddle.training.callbacks.tensorboard import TensorBoard
from heddle.training.callbacks.validate import HeldOutRows, Validate
from heddle.training.callbacks.window_warmup import WindowWarmup
