"""Set-up: from a RunConfig to a Trainer at the newest checkpoint of the run."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.checkpoints import FrozenModel, FrozenWeights, Source, find_source
from heddle.checkpoints.store import CONFIG, Checkpoint, Store, run_config_of, with_checksum
from heddle.core import (
    Config,
    ConfigError,
    DamageError,
    UsageError,
    decode,
    encode,
    fields_of,
    find,
    replace,
    user_code,
)
from heddle.core.system import CoreWatch, Hardware, keep_freed_memory, write_json
from heddle.data.rows import Loader, RowPlan, token_traits
from heddle.data.shards import LabelSet, Prepared, ProgressCallback
from heddle.models import training_flops
from heddle.models.networks import Model
from heddle.models.presets import PresetConfig, preset
from heddle.nn.quantization import use_float8
from heddle.text.tokenizers import TOKENIZER, Tokenizer
from heddle.training import assemble, callbacks, loop
from heddle.training.checks import (
    check_fit,
    check_model,
    check_resumed,
    check_saved_names,
    guess_control_tokens,
    guess_vocab,
    rows_per_process,
)
from heddle.training.compiling import compile_losses, compile_update, fall_back_to_eager, should_compile_run
from heddle.training.environment import ENVIRONMENT, ROUNDING, environment, environment_changes, record_threads
from heddle.training.frozen_base import find_frozen, load_frozen
from heddle.training.frozen_model import check_frozen_model, check_frozen_name, load_frozen_model
from heddle.training.header import EstimateTime, header
from heddle.training.init_vocabulary import describe_vocabulary
from heddle.training.optimizers import TriggeredAverageConfig, WeightAverage
from heddle.training.run_config import RunConfig
from heddle.training.stored_teacher import with_outputs
from heddle.training.trainable import describe_trainable


@dataclass(frozen=True)
class RunEnvironment:
    """What a run needs from outside: its folder, its processes, where it reports to, how samples are written, ..."""

    folder: Path
    processes: loop.ProcessGroup = field(default_factory=loop.ProcessGroup)
    reporter: loop.Reporter = field(default_factory=loop.SilentReporter)
    writer: callbacks.SampleWriter | None = None
    callbacks: tuple[loop.Callback, ...] = ()
    defined_by: tuple[Callable[[], RunConfig], ...] = ()  # the recipe, whose code is recorded
    watch: CoreWatch = field(default_factory=CoreWatch)  # from before the data are prepared


def set_up(config: RunConfig, env: RunEnvironment) -> loop.Trainer:
    """Build a trainer, at the newest good checkpoint of the run's folder where there is one.

    The config of a new run is written before its text becomes tokens; that of a resumed run at the end, so that a run
    which cannot be resumed stays as it was.
    """
    hardware, processes = config.hardware.choose(), env.processes
    store = Store(env.folder / "checkpoints", config.keep.last, config.keep.best, config.keep.background)
    found = newest(store, env.reporter)
    init = find_source(config.init) if config.init is not None and found is None else None
    saved, weights = load_frozen(config, found)
    with processes.main_first():  # the main process makes tokenizer and data
        config, tokenizer = resolve(config, env, found, init)
        if processes.is_main and found is None:
            write_json(env.folder / CONFIG, with_checksum(encode(config)))
        prepared, plan, held_out = open_data(config, tokenizer, env, found)
    model, left_out = _build_model(config, init, tokenizer, hardware, env)
    frozen_model = load_frozen_model(config, found, tokenizer.vocab, hardware, env.folder)
    frozen = saved or left_out
    _announce(header(config, prepared, plan, held_out.plan, model, hardware), model, frozen, plan, env.reporter)
    if should_compile_run(config, model, hardware):
        env.reporter.message("the first step compiles the model; the result is cached")
    trainer = loop.Trainer(
        folder=env.folder,
        model=model,
        take_step=build_step(config, model, hardware, processes, frozen_model),
        loader=_build_loader(config, tokenizer, plan, hardware, processes, frozen_model),
        schedule=config.training.schedule,
        objective=config.objective,
        steps=config.training.steps,
        hardware=hardware,
        signals=loop.Signals(),
        texts=_texts(config, env.folder),
        data=[p.fingerprint for p in prepared],
        held_out=prepared[0].held_out,
        frozen=frozen,
        frozen_model=frozen_model,
    )
    trainer.callbacks = _callbacks(config, trainer, store, held_out, env)
    trainer.signals.unsaved = (lambda: trainer.step - trainer.saved) if processes.is_main else None
    if found is not None:
        resume(trainer, found, weights, env.reporter)
    if processes.is_main:
        _write_records(config, env, environment(hardware, processes.world), resumed=found is not None)
    return trainer


def _build_model(
    config: RunConfig, init: Source | None, tokenizer: Tokenizer, hardware: Hardware, env: RunEnvironment
) -> tuple[Model, FrozenWeights | None]:
    """Build the model on its device; return it with what the checkpoints of a new run leave out."""
    if hardware.device.type == "cpu":
        keep_freed_memory()
    pieces = assemble.exchanged_pieces(config, init, tokenizer)
    if pieces is not None:
        env.reporter.message(describe_vocabulary(pieces))
    model, parent = assemble.build_over_parent(config, init, pieces)
    left_out = find_frozen(config, model, init, parent, env.folder)
    model.compute = None if hardware.dtype is torch.float32 else hardware.dtype
    model.to(hardware.device)
    model.reserve(config.model_length)
    return model, left_out


def _texts(config: RunConfig, folder: Path) -> dict[str, str]:
    """Return the small files that every checkpoint carries."""
    return {CONFIG: json.dumps(encode(config), indent=1, ensure_ascii=False), **assemble.tokenizer_files(folder)}


def open_data(
    config: RunConfig, tokenizer: Tokenizer, env: RunEnvironment, found: Checkpoint | None
) -> tuple[list[Prepared], RowPlan, callbacks.HeldOutRows]:
    """Prepare the data of a run and plan its rows; damaged token shards are built again from their text, once."""
    known = () if found is None else tuple(found.state["data"])
    with env.reporter.tokenizing() as counted:
        on_progress = _announced(env.reporter, counted)
        prepared = assemble.prepare_data(config, tokenizer, env.folder, on_progress, known)
        try:
            return prepared, *assemble.plan_rows(config, prepared)
        except DamageError as error:
            if not assemble.discard_damaged(config, prepared, env.folder):
                raise
            env.reporter.message(f"{error}: its token shards are built again", "warning")
        prepared = assemble.prepare_data(config, tokenizer, env.folder, on_progress, known)
        return prepared, *assemble.plan_rows(config, prepared)


def _announced(reporter: loop.Reporter, counted: ProgressCallback | None) -> ProgressCallback:
    """Say that data are prepared once some are: shards that there are already are found without a word."""
    messages = ["preparing the data: text becomes tokens"]

    def on_progress(documents: int, size: int) -> None:
        if messages:
            reporter.message(messages.pop())
        if counted is not None:
            counted(documents, size)

    return on_progress


def _write_records(config: RunConfig, env: RunEnvironment, now: dict[str, Any], resumed: bool) -> None:
    """Write what the run runs on, and of a resumed run its config; report where the environment has changed."""
    if resumed:
        compared = ROUNDING if config.training.reduction == "deterministic" else (*ROUNDING, "processes")
        changes = environment_changes(env.folder, now, compared)
        if changes is not None:
            env.reporter.message(changes, "warning")
        write_json(env.folder / CONFIG, with_checksum(encode(config)))
    write_json(env.folder / ENVIRONMENT, now)


def resolve(
    config: RunConfig, env: RunEnvironment, found: Checkpoint | None, init: Source | None
) -> tuple[RunConfig, Tokenizer]:
    """Find the tokenizer, and with it what the config leaves open: the full model, ids of control tokens.

    What does not fit is refused before the text is read for a tokenizer.
    """
    model = config.model if init is None else init.config()
    check_fit(replace(config, model=model.expand()), env.processes.world)
    if found is None:
        check_frozen_name(config)
    trained = init is None and found is None and config.tokenizer.pretrained is None
    if trained and not (env.folder / TOKENIZER).exists():
        _check_before_reading(config)
        if config.data.prepared is None and config.tokenizer.learns:
            env.reporter.message("training the tokenizer")
    config = _resolve_splits(config, found)
    tokenizer = assemble.find_tokenizer(config, env.folder, init, found)
    presets = [preset(one.name).make for one in find(config, PresetConfig)]
    config = replace(config, objective=config.objective.resolve(assemble.tokens_by_purpose(tokenizer), tokenizer.vocab))
    if config.objective.label_kind is not None:
        labels = assemble.training_labels(config) if found is None else _stored_labels(found)
        config = config if labels is None else _with_labels(config, labels)
    config = replace(config, model=assemble.resolve_model(config, tokenizer.vocab, init))
    if found is not None:
        check_resumed(config, found)
    check_model(config)
    if found is None:
        check_frozen_model(config, tokenizer)
    return _with_code(config, env, presets), tokenizer


def _with_labels(config: RunConfig, labels: LabelSet) -> RunConfig:
    try:
        return replace(config, objective=config.objective.with_labels(labels))
    except ConfigError as error:
        raise error.with_prefix("objective") from None


def _stored_labels(found: Checkpoint) -> LabelSet | None:
    """Return the labels that a run was trained on; None: they have no names."""
    stored = fields_of(decode(RunConfig, run_config_of(found)).objective).get("labels")
    return stored if isinstance(stored, LabelSet) else None


def _resolve_splits(config: RunConfig, found: Checkpoint | None) -> RunConfig:
    """Return the config with the splits that `auto` stands for; where a resumed run's text is gone, as it had them."""
    wanted = "target" if config.rows.paired else config.objective.label_kind
    try:
        data = config.data.resolve(wanted)
        return replace(config, data=data, mix=tuple(m.resolve() for m in config.mix))
    except ConfigError as error:
        raise error.with_prefix("data") from None
    except UsageError:
        if found is None:
            raise
        before = decode(RunConfig, run_config_of(found))
        return replace(config, data=before.data, mix=before.mix)


def _check_before_reading(config: RunConfig) -> None:
    """Refuse a model that cannot be built or trained, with about as many tokens as the tokenizer will have."""
    vocab = guess_vocab(config)
    objective = config.objective.resolve(guess_control_tokens(config, vocab), vocab)
    check_model(replace(config, objective=objective, model=assemble.resolve_model(config, vocab, None)))


def newest(store: Store, reporter: loop.Reporter) -> Checkpoint | None:
    """Return the newest good checkpoint; damaged ones are reported, and if all are, the run is refused."""
    found = store.newest()
    for path, reason in store.damaged:
        reporter.message(f"skipped {path.name}: {reason}", "warning")
    if found is None and store.damaged:
        raise DamageError(
            f"{store.folder}: no good checkpoint left, {len(store.damaged)} damaged: nothing to resume from; "
            "start a new run, or move the folder away"
        )
    path = store.folder.parent / "metrics.jsonl"
    if found is None and (last := callbacks.Metrics(path).last_save()) is not None:
        raise DamageError(
            f"{store.folder}: no checkpoint, though {path.name} tells of {last}: is a disk not mounted? "
            f"To begin again at step 0, move {path.name} away"
        )
    if found is None and path.exists():
        reporter.message("no checkpoint yet; restarting at step 0", "warning")
    if found is not None and "optimizer" not in found.groups:
        raise UsageError(f"{found.path}: a model without its optimizer; to train from it: init={store.folder.parent}")
    return found


def resume(trainer: loop.Trainer, found: Checkpoint, frozen: Mapping[str, Tensor], reporter: loop.Reporter) -> None:
    """Resume from a checkpoint, with the frozen weights that it leaves out, and report it."""
    trainer.restore(found, frozen)
    reporter.message(f"resumed at step {trainer.step} from {found.path.name}")
    if found.state["data"] != trainer.data:
        reporter.message("the data files changed since the checkpoint (size, date or split)", "warning")


def _announce(
    lines: Iterable[str], model: Model, frozen: FrozenWeights | None, plan: RowPlan, reporter: loop.Reporter
) -> None:
    """Report the header, which weights are trained and stored if not all, and which pairs are too long."""
    for line in lines:
        reporter.message(line)
    if (words := describe_trainable(model)) is not None:
        reporter.message(words)
    if frozen is not None:
        reporter.message(f"checkpoints hold what is trained; the frozen weights stay in {frozen.reference.path}")
    for reason, count in plan.skipped.items():
        if count:
            reporter.message(f"left out: {count:,} pairs, {reason.replace('_', ' ')}", "warning")
    for note in plan.notes:
        reporter.message(note, "warning")


def _build_loader(
    config: RunConfig,
    tokenizer: Tokenizer,
    plan: RowPlan,
    hardware: Hardware,
    processes: loop.ProcessGroup,
    frozen: FrozenModel | None,
) -> Loader:
    show = config.objective.preparer(config.seed, partial(token_traits, tokenizer))
    return Loader(
        plan,
        config.training.batch,
        rank=processes.rank,
        world=processes.world,
        workers=config.hardware.workers,
        pin=hardware.device.type == "cuda",
        transform=with_outputs(show, frozen),
    )


def build_step(
    config: RunConfig, model: Model, hardware: Hardware, processes: loop.ProcessGroup, frozen: FrozenModel | None = None
) -> loop.Step:
    """Build all that one step needs: losses, compiled where it helps, optimizers, guard and average."""
    training = config.training
    share, micro = rows_per_process(training, processes.world)
    losses = loop.ModelWithLoss(model, config.objective.loss_function(None if frozen is None else frozen.model))
    loop.checkpoint_activations(model, config.training.activation_checkpointing)
    if config.hardware.matmul == "float8":
        use_float8(model)
    optimizers = training.optimizer.build(model)
    recover = None
    if should_compile_run(config, model, hardware):
        compile_losses(losses, config)
        if config.hardware.compile == "auto" and processes.world == 1:  # compiled by default, so it may fall back
            recover = partial(fall_back_to_eager, losses)
        if hardware.device.type == "cuda":
            compile_update(optimizers)
    deterministic = config.training.reduction == "deterministic"
    accumulation = (
        loop.DeterministicAccumulation(list(model.parameters())) if deterministic else loop.FastAccumulation()
    )
    return loop.Step(
        losses=accumulation.wrap(losses, processes),
        model=model,
        optimizers=optimizers,
        guard=loop.Guard.start(training.guard, hardware.device),
        average=None if training.average is None else WeightAverage(model, training.average),
        processes=processes,
        seed=config.seed_of_weights,
        clip=training.clip,
        micro_batch=micro,
        carried=[None] * (share // micro),
        recover=recover,
        accumulation=accumulation,
    )


def _with_code(config: RunConfig, env: RunEnvironment, presets: list[Callable[..., Any]]) -> RunConfig:
    """Return the config with the user's own code that it depends on, which is kept in the run's folder."""
    used = [*(type(one) for one in find(config, Config)), *presets, *env.defined_by]
    return replace(config, use=user_code.record(config.use, used, env.folder))


def _callbacks(
    config: RunConfig, trainer: loop.Trainer, store: Store, rows: callbacks.HeldOutRows, env: RunEnvironment
) -> list[loop.Callback]:
    is_main, every, reporter = env.processes.is_main, config.every, env.reporter
    metrics = callbacks.Metrics(env.folder / "metrics.jsonl")
    found: list[loop.Callback] = []
    adapt = callbacks.AdaptThreads
    if env.processes.world == 1 and adapt.wanted(
        trainer.hardware.device, config.hardware.threads, config.training.reduction
    ):
        found.append(adapt(env.watch, reporter, partial(record_threads, env.folder)))
    if not isinstance(config.training.window_warmup, callbacks.NoWindowWarmupConfig):
        found.append(callbacks.WindowWarmup(config.training.window_warmup, trainer.hardware.device))
    if is_main:
        length = trainer.loader.plan.mean_length
        flops = round(training_flops(trainer.model, length) / config.objective.target_share(config.rows.max_length))
        found.append(callbacks.Log(metrics, reporter, every.log, flops))
        found.append(EstimateTime(reporter))
    found.append(callbacks.Validate(rows, config.objective, metrics, reporter, every.validate))
    average = trainer.take_step.average
    if average is not None and isinstance(average.config, TriggeredAverageConfig):
        found.append(callbacks.StartAveraging(average, average.config.patience))
    if is_main and config.tensorboard:
        found.append(callbacks.TensorBoard(env.folder / "tensorboard", every.log))
    found.append(callbacks.StopOnDivergence(config.training.guard.max_consecutive))
    if config.stop.patience is not None:
        found.append(callbacks.EarlyStopping(config.stop.patience))
    if config.stop.minutes is not None:
        found.append(callbacks.TimeLimit(config.stop.minutes))
    found += [*(own.build() for own in config.callbacks), *env.callbacks]
    check_saved_names(found)
    found.append(callbacks.Save(store, every.save, config.training.average_last, metrics))
    writes = trainer.model.can_generate and not config.objective.makes_source  # which would write what was hidden
    if is_main and env.writer is not None and writes:  # last: it may take its time
        found.append(callbacks.Sample(env.writer, env.folder / "samples.txt", reporter, every.sample))
    return found
