"""The training loop: trainer, step, gradient accumulation, data parallel, compilation, checkpointing of activations."""

from heddle.training.loop.activation_checkpointing import ActivationCheckpointing, checkpoint_activations
from heddle.training.loop.reduction import DeterministicAccumulation, FastAccumulation, ProcessGroup, Reduction
from heddle.training.loop.reporter import Reporter, SilentReporter, Style
from heddle.training.loop.signals import Signals
from heddle.training.loop.step import UPDATE, Guard, GuardConfig, ModelWithLoss, Report, Step
from heddle.training.loop.trainer import Callback, Trainer
