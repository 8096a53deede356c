"""A run from beginning to end: which config and folder are meant, and training it there."""

import contextlib
import dataclasses
import fcntl
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heddle.checkpoints.store import (
    CONFIG,
    RUNS,
    checksum_fits,
    find_run,
    load_config,
    newest_config,
    renamed_keys,
    renamed_overrides,
)
from heddle.core import (
    ConfigError,
    DamageError,
    UsageError,
    decode,
    diff,
    encode,
    fields_of,
    hint,
    kinds,
    nearest,
    override,
    replace,
    system_faults,
    user_code,
)
from heddle.core.system import read_config
from heddle.data.sources import corpus_for
from heddle.models.networks import Model
from heddle.models.presets import PRESETS
from heddle.text.tokenizers import TokenizerConfig
from heddle.training.callbacks import SampleWriter
from heddle.training.loop import Callback, ProcessGroup, Reporter, SilentReporter
from heddle.training.run_config import RunConfig
from heddle.training.setup import RunEnvironment, set_up

OLD_LOCK = ".lock"  # a file that earlier versions locked instead of the folder
WARMUP, MICRO_BATCH = "training.schedule.warmup", "training.micro_batch"

log = logging.getLogger("heddle")

Overrides = Iterable[tuple[str, Any]]  # dotted paths and values, in order
Recipes = Mapping[str, Callable[[], RunConfig]]
WriterFactory = Callable[[RunConfig, Path], SampleWriter]


@dataclass(frozen=True)
class ResolvedRun:
    """What to train: a config, of a run that is resumed its folder and its config as it was, of a recipe its code."""

    config: RunConfig
    folder: Path | None = None
    before: RunConfig | None = None
    defined_by: tuple[Callable[[], RunConfig], ...] = field(default=(), compare=False)  # the recipe


@dataclass(frozen=True)
class TrainedRun:
    """What became of a run.

    ended_before: all its steps were done already.
    stopped: why it stopped before its last step; None: it did not.
    is_main: whether this process is the one that speaks, where there are several.
    """

    config: RunConfig
    folder: Path
    model: Model
    step: int
    ended_before: bool
    stopped: str | None
    exit_code: int
    is_main: bool


# --- which run is meant -----------------------------------------------------------------------------------------------


def resolve_run(target: RunConfig | str | Path, overrides: Overrides, runs: Path, recipes: Recipes) -> ResolvedRun:
    """Return the run that a config, the name of a recipe, a config file or a run's folder or name means."""
    overrides = [(path, user_code.use_all(value) if path == "use" else value) for path, value in overrides]
    if isinstance(target, RunConfig):
        target = replace(target, use=tuple(user_code.use_all(target.use)))
        return ResolvedRun(apply_overrides(target, overrides))
    name, path = str(target), Path(target)
    if name in recipes:
        return ResolvedRun(apply_overrides(recipes[name](), overrides), defined_by=(recipes[name],))
    if path.suffix in (".yaml", ".yml", ".json") and not path.is_dir():
        return ResolvedRun(apply_overrides(_read_run_config(path, hints=True), overrides))
    try:
        folder = find_run(name, runs)
    except UsageError:
        if path.exists():
            raise UsageError(f"{name}: text to learn from is given as data: heddle train data={name}") from None
        near = hint(name, [*recipes, *(p.name for p in runs.glob("*"))], f"; recipes: {', '.join(recipes)}")
        near = f"; a preset is: model={name}" if name in PRESETS else near
        raise UsageError(f"no recipe, config file or run is called {name!r}{near}") from None
    return _resumed_run(folder, list(overrides))


def _resumed_run(folder: Path, overrides: list[tuple[str, Any]]) -> ResolvedRun:
    """Return a run to resume; its config is compared with that in its newest checkpoint, which has a checksum."""
    path, saved = folder / CONFIG, newest_config(folder)
    before = None if saved is None else decode(RunConfig, saved[0])
    if before is not None and not path.exists():
        log.warning("%s: gone; its checkpoint's is used", path)
        return ResolvedRun(apply_overrides(before, overrides), folder, before)
    config = _read_run_config(path)
    if checksum_fits(read_config(path)) is False:
        _refuse_damage(path, config, saved, {given for given, _ in overrides})
    return ResolvedRun(apply_overrides(config, overrides), folder, config if before is None else before)


def _refuse_damage(path: Path, config: RunConfig, saved: tuple[dict[str, Any], str] | None, given: set[str]) -> None:
    """Refuse a config that is not as it was written, by the fields that differ from the checkpoint's."""
    fix = "if the edit is yours, delete the key checksum"
    if saved is None:
        raise DamageError(f"{path}: checksum mismatch: changed since it was written; {fix}")
    for change in diff(decode(RunConfig, saved[0]), config):
        if not any(change.path == one or change.path.startswith(f"{one}.") for one in given):
            raise DamageError(
                f"{path}: {change.path}: want {change.before}, the value in {saved[1]}, found {change.after}; "
                f"give {change.path}=VALUE or, {fix}"
            )


def _read_run_config(path: Path, hints: bool = False) -> RunConfig:
    """Read a config in any format; of one that a user wrote, say which keys have another name now."""
    data = read_config(path)
    for old, new in renamed_keys(data) if hints else ():
        log.warning("%s: %s is now called %s", path, old, new)
    with RunConfig.old_names() as renamed:
        config = decode(RunConfig, load_config(data, path))
    for renaming in renamed if hints else ():
        log.warning("%s: %s", path, renaming)
    return config


def apply_overrides(config: RunConfig, overrides: Overrides) -> RunConfig:
    """Change a config by dotted paths.

    A bare path for `data` finds its reader, a bare model is a preset, and a bare tokenizer may be a file or a model.
    """
    given: list[str] = []
    for path, value, renamed in itertools.chain.from_iterable(renamed_overrides(*one) for one in overrides):
        if renamed is not None:
            log.warning(renamed)
        if path == "data" and isinstance(value, str):
            value = encode(corpus_for(str(value)))
        if path == "model" and isinstance(value, str):
            value = _preset(value)
        if path == "tokenizer" and isinstance(value, str) and _is_place(value):
            value = {"kind": "pretrained", "path": str(value)}
        if path == "training.batch" and config.rows.batch_field is not None:
            config = override(config, f"rows.{config.rows.batch_field}", value)
        with RunConfig.old_names() as renamings:
            config = override(config, path, value)
        for renaming in renamings:
            log.warning(renaming)
        given.append(path)
    for path in given:
        _check_beside_init(config, path)
    return _fit_training(config, given)


def _check_beside_init(config: RunConfig, path: str) -> None:
    """Refuse a model beside `init`, and a tokenizer unless it is to replace that of `init`."""
    field = path.split(".")[0]
    if config.init is None or (field == "tokenizer" and config.init_vocabulary.replaces):
        return
    if field in ("model", "tokenizer"):
        fix = "; to exchange the tokenizer: init_vocabulary=replaced" if field == "tokenizer" else ""
        raise ConfigError(path, f"cannot be set together with init, which provides the model and the tokenizer{fix}")


def _fit_training(config: RunConfig, given: list[str]) -> RunConfig:
    """Refuse a warm-up as long as the run if it was given; a recipe's micro-batch is at most the batch that was given.

    A recipe's own warm-up may be longer: a few steps of it are a trial.
    """
    training = config.training
    warmup, micro = fields_of(training.schedule).get("warmup"), training.micro_batch
    if WARMUP in given and isinstance(warmup, int) and warmup >= training.steps:
        raise ConfigError(WARMUP, want=f"less than training.steps, {training.steps}", got=warmup)
    if "training.batch" in given and MICRO_BATCH not in given and micro is not None and micro > training.batch:
        return override(config, MICRO_BATCH, training.batch)
    return config


def _is_place(name: str) -> bool:
    """Tell whether a bare tokenizer is a file, a folder, a run or a package, not a kind of tokenizer."""
    if name in kinds(TokenizerConfig):
        return False
    looks = name.startswith("package:") or Path(name).suffix == ".json" or "/" in name
    return looks or Path(name).exists() or Path(RUNS, name).exists()


def _preset(name: str) -> dict[str, str]:
    """Return a preset as a model."""
    if name not in PRESETS:
        raise ConfigError("model", want="the name of a preset (heddle list)", got=name, near=nearest(name, PRESETS))
    return {"kind": "preset", "name": name}


# --- training it ------------------------------------------------------------------------------------------------------


def train_run(
    run: ResolvedRun,
    runs: Path,
    reporter: Reporter | None = None,
    writer_for: WriterFactory | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainedRun:
    """Train a run in its folder, or in a new one under `runs`, with all processes that `torchrun` has started.

    The callbacks are beside those of the config, and no run remembers them.
    """
    run = run if run.folder is not None else dataclasses.replace(run, config=run.config.absolute())
    processes = ProcessGroup.initialize(run.config.hardware.device)
    speaker = reporter if reporter is not None and processes.is_main else SilentReporter()
    try:
        with system_faults(runs), _locked_folder(run, runs, processes) as folder:
            writer = None if writer_for is None else writer_for(run.config, folder)
            env = RunEnvironment(folder, processes, speaker, writer, tuple(callbacks), run.defined_by)
            with contextlib.nullcontext() if run.folder is not None else _removed_on_error(env):
                return _train(run, env)
    finally:
        processes.close()


def _train(run: ResolvedRun, env: RunEnvironment) -> TrainedRun:
    config, folder, reporter = run.config, env.folder, env.reporter
    reporter.message(f"run {folder}")
    if run.folder is None and folder.name != config.name:
        first = folder.parent / config.name
        reporter.message(f"started a new run because {first} exists; to resume it: heddle train {first}")
    for change in [] if run.before is None else diff(run.before, config):
        reporter.message(f"changed: {change}")
    trainer = set_up(config, env)
    ended_before = trainer.step >= trainer.steps
    trainer.fit()  # of a finished run, only a last validation that a signal had cut short
    stopped, code = trainer.stop, trainer.signals.exit_code
    return TrainedRun(config, folder, trainer.model, trainer.step, ended_before, stopped, code, env.processes.is_main)


@contextlib.contextmanager
def _removed_on_error(env: RunEnvironment) -> Iterator[None]:
    """Remove the folder of a new run that an error kept from beginning."""
    try:
        yield
    except Exception:
        begun = any((env.folder / name).exists() for name in ("metrics.jsonl", "checkpoints"))
        if env.processes.is_main and not begun:
            shutil.rmtree(env.folder, ignore_errors=True)
        raise


# --- its folder -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked_folder(run: ResolvedRun, runs: Path, processes: ProcessGroup) -> Iterator[Path]:
    """Yield the folder of a run, locked against a second process that would train it at the same time."""
    with contextlib.ExitStack() as stack:
        folder = run.folder
        if folder is not None and processes.is_main and not stack.enter_context(_locked(folder)):
            raise UsageError(f"{folder}: another process is training this run")
        if folder is None:
            made = stack.enter_context(new_folder(runs, run.config.name)) if processes.is_main else ""
            folder = Path(processes.broadcast_text(str(made)))
        yield folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder itself, so that no file can be removed to break the lock; yield whether it was free."""
    handle, free = os.open(folder, os.O_RDONLY | os.O_DIRECTORY), False
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
    finally:
        if free:  # explicitly, since a forked child may hold the handle too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


@contextlib.contextmanager
def new_folder(runs: Path, name: str) -> Iterator[Path]:
    """Make and lock a folder for a new run: the name, or the name with the next free number.

    An empty folder is taken if it is not locked: it is that of a run that was killed before it was written.
    """
    for number in itertools.count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.is_symlink() or not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                continue
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made: {error.strerror}") from None
        with _locked(folder) as free:
            if free and all(path.name == OLD_LOCK for path in folder.iterdir()):
                yield folder
                return
