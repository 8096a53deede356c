"""Training: run, step, trainer, optimizers, schedules, callbacks, and data parallelism (DDP)."""

from heddle.training import callbacks, loop, optimizers
from heddle.training.assemble import resolve_model, with_control_tokens
from heddle.training.checks import guess_vocab
from heddle.training.init_vocabulary import (
    ExtendedVocabularyConfig,
    InitVocabularyConfig,
    KeptVocabularyConfig,
    ReplacedVocabularyConfig,
)
from heddle.training.measure import Speed, build_dry_run, measure
from heddle.training.run import ResolvedRun, TrainedRun, apply_overrides, new_folder, resolve_run, train_run
from heddle.training.run_config import EveryConfig, HardwareConfig, KeepConfig, MixConfig, RunConfig, TrainingConfig
from heddle.training.setup import RunEnvironment, set_up
from heddle.training.store_outputs import store_teacher_outputs
