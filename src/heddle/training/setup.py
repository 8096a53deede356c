"""Set-up: from a RunConfig to a Trainer at the newest checkpoint of the run."""

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heddle.checkpoints import Source, find_source
from heddle.checkpoints.store import CONFIG, Checkpoint, Store, run_config_of
from heddle.core import ConfigError, DamageError, decode, diff, encode, fields_of, replace
from heddle.core.system import Hardware, write_json
from heddle.data.rows import Loader, RowPlan
from heddle.models import training_flops
from heddle.models.networks import Model
from heddle.nn.quantization import use_float8
from heddle.text.tokenizers import MASK, TOKENIZER, Tokenizer
from heddle.training.assemble import (
    build_held_out,
    build_model,
    build_training_plan,
    find_tokenizer,
    prepare_data,
    resolve_model,
    tokenizer_files,
)
from heddle.training.callbacks import (
    EarlyStopping,
    HeldOutRows,
    Log,
    Metrics,
    NoWindowWarmupConfig,
    Sample,
    SampleWriter,
    Save,
    StartAveraging,
    StopOnDivergence,
    TensorBoard,
    TimeLimit,
    Validate,
    WindowWarmup,
)
from heddle.training.checks import check_fit, check_model, rows_per_process
from heddle.training.compiling import compile_losses, compile_update, fall_back_to_eager, wants_compile
from heddle.training.environment import ENVIRONMENT, ROUNDING, environment, environment_changes
from heddle.training.loop import (
    Callback,
    DeterministicAccumulation,
    FastAccumulation,
    Guard,
    ModelWithLoss,
    ProcessGroup,
    Reporter,
    Signals,
    SilentReporter,
    Step,
    Trainer,
    checkpoint_activations,
)
from heddle.training.optimizers import TriggeredAverageConfig, WeightAverage
from heddle.training.run_config import RunConfig
from heddle.training.trainable import describe_trainable


@dataclass(frozen=True)
class RunEnvironment:
    """What a run needs from outside: its folder, its processes, where it reports to, and how samples are written."""

    folder: Path
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    reporter: Reporter = field(default_factory=SilentReporter)
    writer: SampleWriter | None = None


def set_up(config: RunConfig, env: RunEnvironment) -> Trainer:
    """Build a trainer, at the newest good checkpoint of the run's folder where there is one.

    The config of a new run is written before its text becomes tokens; that of a resumed run at the end, so that a run
    which cannot be resumed stays as it was.
    """
    hardware, processes = config.hardware.choose(), env.processes
    store = Store(env.folder / "checkpoints", config.keep.last, config.keep.best, config.keep.background)
    found = newest(store, env.reporter)
    init = find_source(config.init) if config.init is not None and found is None else None
    if not processes.is_main:
        processes.barrier()  # the main process makes tokenizer and data first
    config, tokenizer = _resolve(config, env, found, init)
    if processes.is_main and found is None:
        write_json(env.folder / CONFIG, encode(config))
    with env.reporter.tokenizing() as on_progress:
        prepared = prepare_data(config, tokenizer, env.folder, on_progress)
    if processes.is_main:
        processes.barrier()
    model = build_model(config, init)
    model.compute = None if hardware.dtype is torch.float32 else hardware.dtype
    model.to(hardware.device)
    model.reserve(config.rows.max_length)
    plan = build_training_plan(config, prepared)
    _announce(model, plan, wants_compile(config, model, hardware), env.reporter)
    trainer = Trainer(
        folder=env.folder,
        model=model,
        take_step=build_step(config, model, hardware, processes),
        loader=_build_loader(config, plan, hardware, processes),
        schedule=config.training.schedule,
        objective=config.objective,
        steps=config.training.steps,
        hardware=hardware,
        signals=Signals(),
        texts={CONFIG: json.dumps(encode(config), indent=1, ensure_ascii=False), **tokenizer_files(env.folder)},
        data=[p.fingerprint for p in prepared],
    )
    trainer.callbacks = _callbacks(config, trainer, store, build_held_out(config, prepared[0]), env)
    if found is not None:
        resume(trainer, found, env.reporter)
    if processes.is_main:
        _write_records(config, env, environment(hardware, processes.world), resumed=found is not None)
    return trainer


def _write_records(config: RunConfig, env: RunEnvironment, now: dict[str, Any], resumed: bool) -> None:
    """Write what the run runs on, and of a resumed run its config; report where the environment has changed."""
    if resumed:
        compared = ROUNDING if config.training.reduction == "deterministic" else (*ROUNDING, "processes")
        changes = environment_changes(env.folder, now, compared)
        if changes is not None:
            env.reporter.message(changes, "warning")
        write_json(env.folder / CONFIG, encode(config))
    write_json(env.folder / ENVIRONMENT, now)


def _resolve(
    config: RunConfig, env: RunEnvironment, found: Checkpoint | None, init: Source | None
) -> tuple[RunConfig, Tokenizer]:
    """Find the tokenizer, and with it what the config leaves open: the full model, ids of control tokens.

    What does not fit is refused before the text is read for a tokenizer.
    """
    model = config.model if init is None else init.config()
    check_fit(replace(config, model=model.expand()), env.processes.world)
    if init is None:  # all that does not depend on the vocabulary
        sized = fields_of(config.tokenizer).get("vocab")
        check_model(replace(config, model=resolve_model(config, sized if isinstance(sized, int) else None, None)))
    if init is None and not (env.folder / TOKENIZER).exists():
        env.reporter.message("reading the text, for tokenizer and token shards")
    tokenizer = find_tokenizer(config, env.folder, init)
    config = replace(config, objective=config.objective.resolve(_controls(tokenizer), tokenizer.vocab))
    config = replace(config, model=resolve_model(config, tokenizer.vocab, init))
    if found is not None:
        _check_same(config, found)
    check_model(config)
    return config, tokenizer


def _controls(tokenizer: Tokenizer) -> dict[str, int]:
    """Return control tokens by name; the mask token also has our name for it."""
    mask = tokenizer.special_tokens.mask
    return {**tokenizer.special, **({} if mask is None else {MASK: mask})}


def newest(store: Store, reporter: Reporter) -> Checkpoint | None:
    """Return the newest good checkpoint; damaged ones are reported, and if all are, the run is refused."""
    found = store.newest()
    for path, reason in store.damaged:
        reporter.message(f"skipped {path.name}: {reason}", "warning")
    if found is None and store.damaged:
        raise DamageError(
            f"{store.folder}: no good checkpoint left, {len(store.damaged)} damaged: nothing to resume from; "
            "start a new run, or move the folder away"
        )
    if found is None and (store.folder.parent / "metrics.jsonl").exists():
        reporter.message("no checkpoint was saved yet: begins again at step 0", "warning")
    return found


def resume(trainer: Trainer, found: Checkpoint, reporter: Reporter) -> None:
    """Resume from a checkpoint, and report it."""
    trainer.restore(found)
    reporter.message(f"resumed at step {trainer.step} from {found.path.name}")
    if found.state["data"] != trainer.data:
        reporter.message("changed: the data's files, since the checkpoint (size, date or split)", "warning")


def _announce(model: Model, plan: RowPlan, compiles: bool, reporter: Reporter) -> None:
    """Report which weights are trained, where not all are, which pairs are too long, and that the step compiles."""
    if (words := describe_trainable(model)) is not None:
        reporter.message(words)
    for reason, count in plan.skipped.items():
        if count:
            reporter.message(f"left out: {count:,} pairs, {reason.replace('_', ' ')}", "warning")
    if compiles:
        reporter.message("the step is compiled when it is first taken, and kept for later runs")


def _build_loader(config: RunConfig, plan: RowPlan, hardware: Hardware, processes: ProcessGroup) -> Loader:
    return Loader(
        plan,
        config.training.batch,
        rank=processes.rank,
        world=processes.world,
        workers=config.hardware.workers,
        pin=hardware.device.type == "cuda",
        transform=partial(config.objective.prepare, seed=config.seed),
    )


def build_step(config: RunConfig, model: Model, hardware: Hardware, processes: ProcessGroup) -> Step:
    """Build all that one step needs: losses, compiled where it helps, optimizers, guard and average."""
    training = config.training
    share, micro = rows_per_process(training, processes.world)
    losses = ModelWithLoss(model, config.objective)
    checkpoint_activations(model, config.training.activation_checkpointing)
    if config.hardware.matmul == "float8":
        use_float8(model)
    optimizers = training.optimizer.build(model)
    recover = None
    if wants_compile(config, model, hardware):
        compile_losses(losses, config)
        if config.hardware.compile == "auto" and processes.world == 1:  # compiled by default, so it may fall back
            recover = partial(fall_back_to_eager, losses)
        if hardware.device.type == "cuda":
            compile_update(optimizers)
    accumulation = (
        DeterministicAccumulation(list(model.parameters()))
        if config.training.reduction == "deterministic"
        else FastAccumulation()
    )
    return Step(
        losses=accumulation.wrap(losses, processes),
        model=model,
        optimizers=optimizers,
        guard=Guard.start(training.guard, hardware.device),
        average=None if training.average is None else WeightAverage(model, training.average),
        processes=processes,
        seed=config.seed,
        clip=training.clip,
        micro_batch=micro,
        carried=[None] * (share // micro),
        recover=recover,
        accumulation=accumulation,
    )


def _check_same(config: RunConfig, found: Checkpoint) -> None:
    """Refuse to put a checkpoint's weights into another model."""
    before = decode(RunConfig, run_config_of(found))
    changed = diff(before.model, config.model)
    if changed:
        raise ConfigError(
            f"model.{changed[0].path}", want=f"{changed[0].before}, as the run has it", got=changed[0].after
        )
    for name, was, now in (("frozen", before.frozen, config.frozen), ("unfrozen", before.unfrozen, config.unfrozen)):
        if was != now:
            raise ConfigError(name, want=f"{list(was)}, as the run has it; init begins another from it", got=list(now))


def _callbacks(
    config: RunConfig, trainer: Trainer, store: Store, rows: HeldOutRows, env: RunEnvironment
) -> list[Callback]:
    is_main, every, reporter = env.processes.is_main, config.every, env.reporter
    metrics = Metrics(env.folder / "metrics.jsonl")
    found: list[Callback] = []
    if not isinstance(config.training.window_warmup, NoWindowWarmupConfig):
        found.append(WindowWarmup(config.training.window_warmup, trainer.hardware.device))
    if is_main:
        flops = training_flops(trainer.model, trainer.loader.plan.mean_length)
        found.append(Log(metrics, reporter, every.log, flops))
    found.append(Validate(rows, config.objective, metrics, reporter, every.validate))
    average = trainer.take_step.average
    if average is not None and isinstance(average.config, TriggeredAverageConfig):
        found.append(StartAveraging(average, average.config.patience))
    if is_main and config.tensorboard:
        found.append(TensorBoard(env.folder / "tensorboard", every.log))
    found.append(StopOnDivergence(config.training.guard.in_a_row))
    if config.stop.patience is not None:
        found.append(EarlyStopping(config.stop.patience))
    if config.stop.minutes is not None:
        found.append(TimeLimit(config.stop.minutes))
    found.append(Save(store, every.save, config.training.average_last))
    if is_main and env.writer is not None and trainer.model.can_generate:  # last: it may take its time
        found.append(Sample(env.writer, env.folder / "samples.txt", reporter, every.sample))
    return found
