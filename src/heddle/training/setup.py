"""Set-up: from a RunConfig to a Trainer that stands where the run left off."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from heddle.checkpoints.store import CONFIG, Checkpoint, Store, run_config_of
from heddle.core import ConfigError, DamageError, decode, diff, encode, replace
from heddle.core.system import Hardware, write_json
from heddle.data.rows import Loader, RowPlan
from heddle.data.shards import ProgressCallback
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
    ModelWithLoss,
    NoWindowWarmupConfig,
    ProcessGroup,
    Signals,
    Step,
    Trainer,
    checkpoint_activations,
)
from heddle.training.optimizers import Guard, TriggeredAverageConfig, WeightAverage
from heddle.training.run_config import RunConfig
from heddle.training.trainable import describe_trainable


@dataclass(frozen=True)
class RunEnvironment:
    """What a run needs from outside: its folder, its processes, a console, ways to write samples and to count texts."""

    folder: Path
    processes: ProcessGroup
    console: Console
    writer: SampleWriter | None = None
    on_progress: ProgressCallback | None = None


def set_up(config: RunConfig, env: RunEnvironment) -> Trainer:
    """Build every piece, and go on from the newest good checkpoint where there is one."""
    hardware, processes = config.hardware.choose(), env.processes
    store = Store(env.folder / "checkpoints", config.keep.last, config.keep.best, config.keep.background)
    found = newest(store, env.console)
    if not processes.is_main:
        processes.barrier()  # the leading process makes tokenizer and data first
    config, resolved, tokenizer = _resolved(config, env, found)
    prepared = prepare_data(config, tokenizer, env.folder, env.on_progress)
    if processes.is_main:
        processes.barrier()
    model = build_model(resolved, begun=found is not None)
    model.compute = None if hardware.dtype is torch.float32 else hardware.dtype
    model.to(hardware.device)
    model.reserve(config.rows.max_length)
    plan = build_training_plan(config, prepared)
    _tell(model, plan, wants_compile(resolved, model, hardware), env.console)
    trainer = Trainer(
        folder=env.folder,
        model=model,
        take_step=build_step(resolved, model, hardware, processes),
        loader=_build_loader(config, plan, hardware, processes),
        schedule=config.training.schedule,
        objective=config.objective,
        steps=config.training.steps,
        hardware=hardware,
        signals=Signals(),
        texts={
            CONFIG: json.dumps(encode(resolved), indent=1, ensure_ascii=False),
            **tokenizer_files(env.folder),
        },
        data=[p.fingerprint for p in prepared],
    )
    trainer.callbacks = _callbacks(config, trainer, store, build_held_out(config, prepared[0]), env)
    if found is not None:
        resume(trainer, found, env.console)
    if processes.is_main:  # last: what could not go on has changed nothing
        _write_records(resolved, env, environment(hardware, processes.world), begun=found is not None)
    return trainer


def _write_records(config: RunConfig, env: RunEnvironment, now: dict[str, Any], begun: bool) -> None:
    """Write what the run is and what it runs on, and tell of the latter where it has changed."""
    compared = ROUNDING if config.hardware.sums == "fixed" else (*ROUNDING, "processes")
    words = environment_changes(env.folder, now, compared) if begun else None
    if words is not None:
        env.console.print(words, style="yellow", highlight=False, markup=False)
    write_json(env.folder / CONFIG, encode(config))
    write_json(env.folder / ENVIRONMENT, now)


def _resolved(
    config: RunConfig, env: RunEnvironment, found: Checkpoint | None
) -> tuple[RunConfig, RunConfig, Tokenizer]:
    """Find the tokenizer, and with it what the config leaves open; return the config without and with its full model.

    What is wrong is told before the text is read for a tokenizer, or else before all of it becomes tokens.
    """
    begun, world = found is not None, env.processes.world
    if config.init is None or begun:
        check_fit(replace(config, model=config.model.expand()), world)
    if config.init is None and not (env.folder / TOKENIZER).exists():
        env.console.print("reading the text, for tokenizer and token shards", highlight=False)
    tokenizer = find_tokenizer(config, env.folder)
    config = replace(config, objective=config.objective.resolve(_controls(tokenizer), tokenizer.vocab))
    resolved = replace(config, model=resolve_model(config, tokenizer.vocab, begun))
    if found is not None:
        _check_same(resolved, found)
    check_fit(resolved, world)
    check_model(resolved)
    return config, resolved, tokenizer


def _controls(tokenizer: Tokenizer) -> dict[str, int]:
    """Return control tokens by name; what hides tokens bears our name for it too, whatever its own."""
    mask = tokenizer.special_tokens.mask
    return {**tokenizer.special, **({} if mask is None else {MASK: mask})}


def newest(store: Store, console: Console) -> Checkpoint | None:
    """Return the newest good checkpoint; damaged ones are named, and if all are, nothing is begun anew."""
    found = store.newest()
    for path, reason in store.damaged:
        console.print(f"passed over {path.name}: {reason}", style="yellow", highlight=False, markup=False)
    if found is None and store.damaged:
        raise DamageError(
            f"{store.folder}: no good checkpoint left, {len(store.damaged)} damaged: nothing to resume from; "
            "start a new run, or move the folder away"
        )
    if found is None and (store.folder.parent / "metrics.jsonl").exists():
        console.print("no checkpoint was saved yet: begins again at step 0", style="yellow", highlight=False)
    return found


def resume(trainer: Trainer, found: Checkpoint, console: Console) -> None:
    """Go on from a checkpoint, and say so."""
    trainer.restore(found)
    console.print(f"resumed at step {trainer.step} from {found.path.name}", highlight=False)
    if found.state["data"] != trainer.data:
        console.print(
            "changed: the data's files, since the checkpoint (size, date or split)", style="yellow", highlight=False
        )


def _tell(model: Model, plan: RowPlan, compiles: bool, console: Console) -> None:
    """Say what learns, where not all does, what the rows have no room for, and what the first step waits for."""
    if (words := describe_trainable(model)) is not None:
        console.print(words, highlight=False)
    for reason, count in plan.skipped.items():
        if count:
            console.print(f"left out: {count:,} pairs, {reason.replace('_', ' ')}", style="yellow", highlight=False)
    if compiles:
        console.print("the step is compiled when it is first taken, and kept for later runs", highlight=False)


def _build_loader(config: RunConfig, plan: RowPlan, hardware: Hardware, processes: ProcessGroup) -> Loader:
    return Loader(
        plan,
        config.training.batch,
        rank=processes.rank,
        world=processes.world,
        workers=config.hardware.workers,
        pin=hardware.device.type == "cuda",
        change=partial(config.objective.prepare, seed=config.seed),
    )


def build_step(config: RunConfig, model: Model, hardware: Hardware, processes: ProcessGroup) -> Step:
    """Build all that one step needs: losses, compiled where it helps, optimizers, guard and average."""
    training = config.training
    share, micro = rows_per_process(training, processes.world)
    losses = ModelWithLoss(model, config.objective)
    checkpoint_activations(model, config.hardware.recompute)
    if config.hardware.products == "float8":
        use_float8(model)
    optimizers = training.optimizer.build(model)
    recover = None
    if wants_compile(config, model, hardware):
        compile_losses(losses, config)
        if config.hardware.compile == "auto" and processes.world == 1:  # nobody asked for it, so it may fail
            recover = partial(fall_back_to_eager, losses)
        if hardware.device.type == "cuda":
            compile_update(optimizers)
    sums = (
        DeterministicAccumulation(list(model.parameters())) if config.hardware.sums == "fixed" else FastAccumulation()
    )
    return Step(
        losses=sums.wrap(losses, processes),
        model=model,
        optimizers=optimizers,
        guard=Guard.start(training.guard, hardware.device),
        average=None if training.average is None else WeightAverage(model, training.average),
        processes=processes,
        seed=config.seed,
        clip=training.clip,
        micro=micro,
        carried=[None] * (share // micro),
        recover=recover,
        sums=sums,
    )


def _check_same(config: RunConfig, found: Checkpoint) -> None:
    """Refuse to put a checkpoint's weights into another model."""
    before = decode(RunConfig, run_config_of(found))
    changed = diff(before.model, config.model)
    if changed:
        raise ConfigError(
            f"model.{changed[0].path}", want=f"{changed[0].before}, as the run has it", got=changed[0].after
        )
    for name, was, now in (("frozen", before.frozen, config.frozen), ("thawed", before.thawed, config.thawed)):
        if was != now:
            raise ConfigError(name, want=f"{list(was)}, as the run has it; init begins another from it", got=list(now))


def _callbacks(
    config: RunConfig, trainer: Trainer, store: Store, rows: HeldOutRows, env: RunEnvironment
) -> list[Callback]:
    is_main, every, console = env.processes.is_main, config.every, env.console
    metrics = Metrics(env.folder / "metrics.jsonl")
    found: list[Callback] = []
    if not isinstance(config.training.horizon, NoWindowWarmupConfig):
        found.append(WindowWarmup(config.training.horizon, trainer.hardware.device))
    if is_main:
        flops = training_flops(trainer.model, trainer.loader.plan.mean_length)
        found.append(Log(metrics, console, every.log, flops))
    found.append(Validate(rows, config.objective, metrics, console, every.validate))
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
        found.append(Sample(env.writer, env.folder / "samples.txt", console, every.sample))
    return found
