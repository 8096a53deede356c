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
from heddle.training.init_vocabulary import InitVocabularyConfig, KeptVocabularyConfig
from heddle.training.loop import ActivationCheckpointing, GuardConfig, Reduction
from heddle.training.optimizers import AdamWConfig, CosineConfig, OptimizerConfig, ScheduleConfig, WeightAverageConfig

MAX_THREADS = 1024  # more than that end a process rather than speed it up

check_threads = within(f"at most {MAX_THREADS:,}", lambda number: number <= MAX_THREADS)


@settings
class TrainingConfig(Config):
    """Steps, batch size, optimizer, schedule and clipping.

    steps: how many optimizer steps to take.
    batch: rows in a step (batch size), over all micro-batches and processes.
    micro_batch: rows at once on one process; fewer than its share: gradient accumulation; None: all of its share.
    optimizer: how gradients change the weights: AdamW, Adafactor, SGD or Muon.
    schedule: how the learning rate changes over the steps: warm-up and decay.
    clip: gradient clipping: the largest norm of the gradient; null: none.
    average: weight averaging, such as EMA: the averaged weights are validated and used; null: none.
    average_last: at the end, average the weights of this many checkpoints.
    guard: which steps are skipped (spikes, NaN), and when the run ends as diverged.
    window_warmup: how far back attention looks at each step.
    activation_checkpointing: gradient checkpointing: what backward computes again, to save memory.
    reduction: deterministic: any number of processes gives the same bits, for more memory.
    """

    steps: int = 1000
    batch: int = 32
    micro_batch: int | None = None
    optimizer: OptimizerConfig = AdamWConfig()
    schedule: ScheduleConfig = CosineConfig()
    clip: float | None = 1.0
    average: WeightAverageConfig | None = None
    average_last: int = 0
    guard: GuardConfig = GuardConfig()
    window_warmup: WindowWarmupConfig = NoWindowWarmupConfig()
    activation_checkpointing: ActivationCheckpointing = "none"
    reduction: Reduction = "fast"

    def __post_init__(self) -> None:
        check_at_least(1, steps=self.steps, batch=self.batch, micro_batch=self.micro_batch)
        check_at_least(0, average_last=self.average_last)
        if self.average is not None and self.average_last > 1:
            raise ConfigError("average_last", "cannot be combined with training.average; choose one of the two")
        if self.clip is not None and self.clip <= 0:
            raise ConfigError("clip", want="above 0, or null for none", got=self.clip)


@settings
class EveryConfig(Config):
    """Intervals, in steps.

    log: steps between two lines of metrics.jsonl.
    validate: steps between two validations on held-out text.
    save: steps between two checkpoints.
    sample: steps between two samples of generated text.
    """

    log: Positive = 10
    validate: Positive = 250
    save: Positive = 250
    sample: Positive = 250


@settings
class KeepConfig(Config):
    """Which checkpoints are kept, and whether a background thread writes them.

    last: how many of the newest checkpoints to keep.
    best: how many checkpoints of lowest held-out loss to keep in addition.
    background: whether checkpoints are written in a background thread.
    weights: which weights to store: all, or trained (the frozen stay in `init`); auto: trained for runs with adapters.
    """

    last: Positive = 2
    best: Count = 1
    background: bool = False
    weights: Literal["auto", "all", "trained"] = "auto"


@settings
class StopConfig(Config):
    """When a run ends before its steps are done.

    minutes: time limit in minutes, after which the run saves and ends.
    patience: early stopping: the number of validations without a lower held-out loss after which the run ends.
    """

    minutes: Annotated[float, within("at least 0", lambda minutes: minutes >= 0)] | None = None
    patience: Positive | None = None


@settings
class HardwareConfig(Config):
    """Where to compute, and how.

    device: where to compute: auto, cpu, cuda or cuda:N.
    dtype: number format of the computation: auto, float32, bfloat16 or float64 (mixed precision: bfloat16).
    compile: torch.compile: auto on a GPU where it helps; on; graphs: on, replayed as CUDA graphs; off.
    matmul: float8: linear layers inside the stack multiply in float8.
    workers: threads that build batches ahead.
    threads: CPU threads of the computation; null: one for each free core, and fewer while other processes use them.
    """

    device: str = "auto"
    dtype: str = "auto"
    compile: Literal["auto", "on", "graphs", "off"] = "auto"
    matmul: Literal["plain", "float8"] = "plain"
    workers: int = 1
    threads: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype == "float16":
            raise ConfigError("dtype", "float16 needs loss scaling, which is not supported; use bfloat16")
        check_at_least(0, workers=self.workers)
        check_threads(workers=self.workers, threads=self.threads)

    def choose(self) -> Hardware:
        """Choose device and dtype, make a GPU torch's current device, and set the number of threads."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            hardware = choose_hardware(self.device, self.dtype)
        except ConfigError as error:
            raise error.with_prefix("hardware") from None
        if hardware.device.type == "cuda" and hardware.device.index is not None:
            torch.cuda.set_device(hardware.device)
        return hardware


@settings
class MixConfig(Config):
    """An additional corpus, mixed in by weight; the run's main corpus has weight 1.

    data: the additional corpus.
    weight: rows from this corpus for each row of the main corpus.
    """

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
    """A complete run.

    format: version of the config format; not to be overridden.
    name: name of the run's folder in runs/.
    seed: random seed of initial weights, data order, dropout and samples.
    weight_seed: random seed of initial weights and dropout alone; null: seed.
    model: the network: a preset by name, or every part written out.
    tokenizer: how text becomes tokens: a kind that is trained on the data, or a file, a run or another model.
    data: what to learn from, and what is held out for validation.
    mix: additional corpora, mixed in by weight.
    rows: how documents become rows of tokens.
    validation_rows: the largest number of held-out rows that a validation measures; None: all.
    objective: the training objective: the loss.
    training: steps, batch size, optimizer, schedule and clipping.
    every: intervals, in steps, at which to log, validate, save and sample.
    keep: which checkpoints to keep.
    stop: when to end before all steps are done: early stopping, time limit.
    hardware: device, dtype, threads and compilation.
    init: the model to start from (fine-tuning): a run, a Hugging Face folder or a GGUF file, with its tokenizer.
    init_layers: layers of `init` to start from: how many, spread evenly, or their numbers from 0; None: all.
    init_vocabulary: what becomes of the tokens of `init`: kept, extended by those of the data, or replaced.
    adapters: adapters to train, such as LoRA; the other weights are then frozen.
    frozen: patterns of weights that are not trained, such as stack.0.*.
    unfrozen: patterns of weights to train although `adapters` or `frozen` freeze them.
    tensorboard: whether to write TensorBoard logs to the run's folder (pip install 'heddle[track]').
    callbacks: your own callbacks, in addition to those of the library.
    use: files and modules of your own code (plugins); a run also stores their hashes.
    """

    format: int = CONFIG_FORMAT
    name: str = "first"
    seed: int = 0
    weight_seed: int | None = None
    model: ModelConfig = PresetConfig()
    tokenizer: TokenizerConfig = BpeTokenizer()
    data: CorpusConfig = CorpusConfig()
    mix: tuple[MixConfig, ...] = ()
    rows: RowsConfig = PackedRows()
    validation_rows: int | None = None
    objective: ObjectiveConfig = NextTokenConfig()
    training: TrainingConfig = TrainingConfig()
    every: EveryConfig = EveryConfig()
    keep: KeepConfig = KeepConfig()
    stop: StopConfig = StopConfig()
    hardware: HardwareConfig = HardwareConfig()
    init: str | None = None
    init_layers: Positive | tuple[Count, ...] | None = None
    init_vocabulary: InitVocabularyConfig = KeptVocabularyConfig()
    adapters: AdapterConfig | None = None
    frozen: tuple[str, ...] = ()
    unfrozen: tuple[str, ...] = ()
    tensorboard: bool = False
    callbacks: tuple[CallbackConfig, ...] = ()
    use: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name or self.name != self.name.strip("./ ") or "/" in self.name:
            raise ConfigError("name", want="a plain folder name", got=self.name)
        if self.format != CONFIG_FORMAT:
            raise ConfigError("format", want=f"{CONFIG_FORMAT}, in which this version writes configs", got=self.format)
        check_at_least(1, validation_rows=self.validation_rows)
        names = ["data, which weighs 1", *(f"mix.{i}.weight" for i in range(len(self.mix)))]
        apportion([1.0, *(share.weight for share in self.mix)], names=names)
        if self.hardware.compile == "graphs":
            self._check_graphs()
        if self.keep.weights == "trained" and self.init is None:
            raise ConfigError("keep.weights", want="auto or all where no init names another model", got="trained")
        earlier = self.training.average_last - 1
        if self.keep.last < earlier:
            want = f"at least {earlier}, because training.average_last needs them"
            raise ConfigError("keep.last", want=want, got=self.keep.last)

    @property
    def seed_of_weights(self) -> int:
        """Return the seed of initial weights and dropout."""
        return self.seed if self.weight_seed is None else self.weight_seed

    def absolute(self) -> Self:
        """Return the run with absolute paths of data and tokenizer, so that it can be resumed in any working folder."""
        mix = tuple(replace(share, data=share.data.absolute()) for share in self.mix)
        return replace(self, data=self.data.absolute(), mix=mix, tokenizer=self.tokenizer.absolute())

    @property
    def model_length(self) -> int:
        """Return the most tokens of either side that the model is shown of a row."""
        return self.objective.model_length(self.rows.max_length)

    def _check_graphs(self) -> None:
        """Refuse CUDA graphs where shapes change between steps or state is carried from one replay to the next."""
        why = None
        if self.rows.carries_state:
            why = f"rows of the kind {self.rows.kind}, which carry state"
        elif not self.rows.fixed_shape:
            why = f"rows of the kind {self.rows.kind}, whose batches differ in shape"
        elif self.training.micro_batch is not None and self.training.micro_batch < self.training.batch:
            why = "several micro-batches a step"
        if why is not None:
            raise ConfigError("hardware.compile", want=f"on, auto or off with {why}", got="graphs")
