"""RunConfig: everything that a training run depends on."""

from typing import Annotated, Literal, Self

import torch

from heddle.checkpoints.store import CONFIG_FORMAT
from heddle.core import Config, ConfigError, Count, Positive, check_at_least, replace, settings, within
from heddle.core.system import Hardware, choose_hardware
from heddle.data.rows import PackedRows, RowsConfig, apportion
from heddle.data.sources import CorpusConfig
from heddle.models.networks import ModelConfig
from heddle.models.presets import PresetConfig
from heddle.nn.adapters import AdapterConfig
from heddle.objectives import NextTokenConfig, ObjectiveConfig
from heddle.text.tokenizers import BpeTokenizer, TokenizerConfig
from heddle.training.callbacks import CallbackConfig, NoWindowWarmupConfig, WindowWarmupConfig
from heddle.training.loop import ActivationCheckpointing, GuardConfig, Reduction
from heddle.training.optimizers import AdamWConfig, CosineConfig, OptimizerConfig, ScheduleConfig, WeightAverageConfig


@settings
class TrainingConfig(Config):
    """How far, how much at once, and how gradients become steps."""

    steps: int = 1000
    batch: int = 32  # rows per step, over all micro-batches and processes
    micro_batch: int | None = None  # rows at once on one process; None: all of its share
    optimizer: OptimizerConfig = AdamWConfig()
    schedule: ScheduleConfig = CosineConfig()
    clip: float | None = 1.0
    average: WeightAverageConfig | None = None  # of the weights, used instead of them
    average_last: int = 0  # at the end, average this many checkpoints
    guard: GuardConfig = GuardConfig()
    window_warmup: WindowWarmupConfig = NoWindowWarmupConfig()  # how far back attention looks at each step
    activation_checkpointing: ActivationCheckpointing = "none"  # what backward computes again, to save memory
    # deterministic: micro-batches add up in one order, so that any number of processes gives the same bits, for memory
    reduction: Reduction = "fast"

    def __post_init__(self) -> None:
        check_at_least(1, steps=self.steps, batch=self.batch, micro_batch=self.micro_batch)
        check_at_least(0, average_last=self.average_last)
        if self.average is not None and self.average_last > 1:
            raise ConfigError("average_last", want="0 beside another average: one of the two", got=self.average_last)
        if self.clip is not None and self.clip <= 0:
            raise ConfigError("clip", want="above 0, or null for none", got=self.clip)


@settings
class EveryConfig(Config):
    """After how many steps things happen."""

    log: Positive = 10
    validate: Positive = 250
    save: Positive = 250
    sample: Positive = 250


@settings
class KeepConfig(Config):
    """Which checkpoints stay, and whether they are written beside the training."""

    last: Positive = 2
    best: Count = 1
    background: bool = False


@settings
class StopConfig(Config):
    """When a run ends before its steps are done."""

    minutes: Annotated[float, within("at least 0", lambda minutes: minutes >= 0)] | None = None
    patience: Positive | None = None  # validations without a fall


@settings
class HardwareConfig(Config):
    """Where to compute, and how."""

    device: str = "auto"
    dtype: str = "auto"
    # auto: on a GPU, unless for recurrence or pairs of many lengths; graphs: on a GPU, and replayed in one go
    compile: Literal["auto", "on", "graphs", "off"] = "auto"
    matmul: Literal["plain", "float8"] = "plain"  # float8: linear maps inside layers multiply in float8
    workers: int = 1  # threads that build batches ahead

    def __post_init__(self) -> None:
        if self.dtype == "float16":
            raise ConfigError("dtype", want="bfloat16, for float16 would need its losses scaled", got=self.dtype)
        check_at_least(0, workers=self.workers)

    def choose(self) -> Hardware:
        """Decide device and dtype; on a GPU, make it the one that torch speaks of."""
        try:
            hardware = choose_hardware(self.device, self.dtype)
        except ConfigError as error:
            raise error.inside("hardware") from None
        if hardware.device.type == "cuda" and hardware.device.index is not None:
            torch.cuda.set_device(hardware.device)
        return hardware


@settings
class MixConfig(Config):
    """A further corpus, mixed in by weight against the run's own, which weighs 1."""

    data: CorpusConfig
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ConfigError("weight", want="above 0", got=self.weight)

    def resolve(self) -> Self:
        """Return the corpus with the split that its own stands for."""
        return replace(self, data=self.data.resolve())


@settings
class RunConfig(Config):
    """A complete run."""

    format: int = CONFIG_FORMAT  # of this file; not to be overridden
    name: str = "first"
    seed: int = 0
    model: ModelConfig = PresetConfig()
    tokenizer: TokenizerConfig = BpeTokenizer()
    data: CorpusConfig = CorpusConfig()
    mix: tuple[MixConfig, ...] = ()
    rows: RowsConfig = PackedRows()
    validation_rows: int | None = None  # None: all that is held out
    objective: ObjectiveConfig = NextTokenConfig()
    training: TrainingConfig = TrainingConfig()
    every: EveryConfig = EveryConfig()
    keep: KeepConfig = KeepConfig()
    stop: StopConfig = StopConfig()
    hardware: HardwareConfig = HardwareConfig()
    init: str | None = None  # a run to start from, with its model and tokenizer
    adapters: AdapterConfig | None = None  # what learns beside the model's weights, which then do not
    frozen: tuple[str, ...] = ()  # patterns of names of weights that do not learn: stack.0.*
    unfrozen: tuple[str, ...] = ()  # and of those that do, though adapters or the patterns above say otherwise
    tensorboard: bool = False
    callbacks: tuple[CallbackConfig, ...] = ()  # of the user's own, beside those of the library
    use: tuple[str, ...] = ()  # files and modules of the user's own code; a run has their hashes, too

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip("./ ") or "/" in self.name:
            raise ConfigError("name", want="a plain folder name", got=self.name)
        if self.format != CONFIG_FORMAT:
            raise ConfigError("format", want=f"{CONFIG_FORMAT}, in which this version writes configs", got=self.format)
        check_at_least(1, validation_rows=self.validation_rows)
        names = ["data, which weighs 1", *(f"mix.{i}.weight" for i in range(len(self.mix)))]
        apportion([1.0, *(share.weight for share in self.mix)], names=names)
        if self.hardware.compile == "graphs":
            self._check_graphs()
        earlier = self.training.average_last - 1
        if self.keep.last < earlier:
            raise ConfigError("keep.last", want=f"at least {earlier}, for training.average_last", got=self.keep.last)

    def absolute(self) -> Self:
        """Return the run with absolute paths of its data, so that it can be resumed in any working folder."""
        mix = tuple(replace(share, data=share.data.absolute()) for share in self.mix)
        return replace(self, data=self.data.absolute(), mix=mix)

    def _check_graphs(self) -> None:
        """Refuse to replay what changes its shape, or leaves something for the next replay to read."""
        why = None
        if self.rows.paired or self.rows.carries_state or self.rows.varies_in_length:
            why = f"rows of the kind {self.rows.kind}"
        elif self.training.micro_batch is not None and self.training.micro_batch < self.training.batch:
            why = "several micro-batches a step"
        if why is not None:
            raise ConfigError("hardware.compile", want=f"on, auto or off, for {why}", got="graphs")
