"""A run from beginning to end: which config and folder are meant, and training it there."""

import contextlib
import fcntl
import itertools
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.checkpoints.store import CONFIG, RUNS, find_run, migrate_config, renamed_keys, renamed_overrides
from heddle.core import (
    ConfigError,
    HeddleError,
    UsageError,
    decode,
    diff,
    encode,
    hint,
    kinds,
    nearest,
    override,
    system_faults,
)
from heddle.core.system import read_config
from heddle.data.sources import corpus_for
from heddle.models.networks import Model
from heddle.models.presets import PRESETS
from heddle.text.tokenizers import TokenizerConfig
from heddle.training.callbacks import SampleWriter
from heddle.training.loop import ProcessGroup, Reporter, SilentReporter
from heddle.training.run_config import RunConfig
from heddle.training.setup import RunEnvironment, set_up

LOCK = ".lock"

log = logging.getLogger("heddle")

Overrides = Iterable[tuple[str, Any]]  # dotted paths and values, in order
Recipes = Mapping[str, Callable[[], RunConfig]]
WriterFactory = Callable[[RunConfig, Path], SampleWriter]


@dataclass(frozen=True)
class ResolvedRun:
    """What to train: a config, and of a run that is resumed its folder and its config as it was."""

    config: RunConfig
    folder: Path | None = None
    before: RunConfig | None = None


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
    if isinstance(target, RunConfig):
        return ResolvedRun(apply_overrides(target, overrides))
    name, path = str(target), Path(target)
    if name in recipes:
        return ResolvedRun(apply_overrides(recipes[name](), overrides))
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
    before = _read_run_config(folder / CONFIG)
    return ResolvedRun(apply_overrides(before, overrides), folder, before)


def _read_run_config(path: Path, hints: bool = False) -> RunConfig:
    """Read a config in any format; of one that a user wrote, say which keys have another name now."""
    data = read_config(path)
    for old, new in renamed_keys(data) if hints else ():
        log.warning("%s: %s is now called %s", path, old, new)
    return decode(RunConfig, migrate_config(data, str(path)))


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
        config = override(config, path, value)
        given.append(path)
    for path in given:
        if config.init is not None and path.split(".")[0] in ("model", "tokenizer"):
            raise ConfigError(path, want="nothing, for model and tokenizer come with init", got=path)
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
    run: ResolvedRun, runs: Path, reporter: Reporter | None = None, writer_for: WriterFactory | None = None
) -> TrainedRun:
    """Train a run in its folder, or in a new one under `runs`, with all processes that `torchrun` has started."""
    processes = ProcessGroup.initialize(run.config.hardware.device)
    speaker = reporter if reporter is not None and processes.is_main else SilentReporter()
    try:
        with system_faults(runs):
            folder = run.folder
            if folder is None:
                folder = Path(
                    processes.broadcast_text(str(new_folder(runs, run.config.name)) if processes.is_main else "")
                )
            writer = None if writer_for is None else writer_for(run.config, folder)
            env = RunEnvironment(folder, processes, speaker, writer)
            with contextlib.nullcontext() if run.folder is not None else _removed_on_error(env):
                return _train(run, env)
    finally:
        processes.close()


def _train(run: ResolvedRun, env: RunEnvironment) -> TrainedRun:
    config, folder, reporter = run.config, env.folder, env.reporter
    reporter.message(f"run {folder}")
    if run.folder is None and folder.name != config.name:
        reporter.message(f"a new run; to resume the first of that name: heddle train {folder.parent / config.name}")
    for change in [] if run.before is None else diff(run.before, config):
        reporter.message(f"changed: {change}")
    with _locked(env):
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
    except HeddleError:
        begun = any((env.folder / name).exists() for name in ("metrics.jsonl", "checkpoints"))
        if env.processes.is_main and not begun:
            shutil.rmtree(env.folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def _locked(env: RunEnvironment) -> Iterator[None]:
    """Keep a second process from training the same run at the same time."""
    if not env.processes.is_main:
        yield
        return
    with (env.folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{env.folder}: another process is training this run") from None
        yield


def new_folder(runs: Path, name: str) -> Path:
    """Make a folder for a new run: the name, or the name with the next free number.

    A folder that holds nothing but a free lock is that of a run that was killed before it was written: it is taken.
    """
    for number in itertools.count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not _abandoned(folder):
                continue
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made: {error.strerror}") from None
        return folder
    raise AssertionError("unreachable")


def _abandoned(folder: Path) -> bool:
    """Tell whether a folder holds nothing but a lock that no process holds."""
    if not folder.is_dir() or [path.name for path in folder.iterdir()] != [LOCK]:
        return False
    with (folder / LOCK).open("r") as file, contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
