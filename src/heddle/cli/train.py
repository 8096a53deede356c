"""heddle train: a recipe, a config file, or a run to go on with."""

import contextlib
import fcntl
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from heddle.checkpoints.store import CONFIG, find_run, migrate_config
from heddle.cli.options import pairs_of
from heddle.cli.progress import counted
from heddle.cli.samples import writer_for
from heddle.core import (
    Change,
    ConfigError,
    HeddleError,
    UsageError,
    decode,
    diff,
    encode,
    hint,
    nearest,
    override,
    system_faults,
)
from heddle.core.system import read_config, to_yaml, write_json
from heddle.data.sources import corpus_for
from heddle.models.presets import PRESETS
from heddle.recipes import RECIPES
from heddle.training import RunConfig, RunEnvironment, set_up
from heddle.training.loop import ProcessGroup


class SteadyConsole(Console):
    """A console whose reader may leave (`heddle train | head`): training goes on in silence."""

    def on_broken_pipe(self) -> None:
        """Fall silent."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


def train(target: str | None, overrides: list[str], print_only: bool, runs: Path = Path("runs")) -> int:
    """Train, and return the exit code: 0, or the signal's when one asked the run to leave."""
    console = SteadyConsole()
    config, folder = resolve(target, overrides, runs)
    if print_only:
        console.out(to_yaml(encode(config)), highlight=False, end="")
        return 0
    processes = ProcessGroup.initialize(config.hardware.device)
    quiet = console if processes.is_main else Console(quiet=True)
    try:
        with system_faults(runs):
            if folder is not None:
                return _train(config, RunEnvironment(folder, processes, quiet))
            folder = Path(processes.broadcast_text(str(_begin(config, runs)) if processes.is_main else ""))
            with _nothing_left(folder, processes):
                return _train(config, RunEnvironment(folder, processes, quiet))
    finally:
        processes.close()


@contextlib.contextmanager
def _nothing_left(folder: Path, processes: ProcessGroup) -> Iterator[None]:
    """Take back the folder of a new run that a wrong wish kept from beginning."""
    try:
        yield
    except HeddleError:
        if processes.is_main and not (folder / "metrics.jsonl").exists() and not (folder / "checkpoints").exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def _alone(env: RunEnvironment) -> Iterator[None]:
    """Keep a second process from training the same run at the same time."""
    if not env.processes.is_main:
        yield
        return
    with (env.folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{env.folder}: another process is training this run") from None
        yield


def _begin(config: RunConfig, runs: Path) -> Path:
    """Make the folder of a new run, with its config in it: from now on the run can be gone on with."""
    folder = new_folder(runs, config.name)
    write_json(folder / CONFIG, encode(config))
    return folder


def _train(config: RunConfig, env: RunEnvironment) -> int:
    console, folder = env.console, env.folder
    console.print(Text(f"run {folder}"))
    if folder.name != config.name and (folder.parent / config.name).is_dir():
        console.print(
            Text(f"a new run; to go on with the first of that name: heddle train {folder.parent / config.name}")
        )
    for change in _changes(config, folder / CONFIG):
        console.print(Text(f"changed: {change}"))
    with _alone(env):
        with counted("tokens", console) as passed:
            env = RunEnvironment(folder, env.processes, console, writer_for(config, folder), passed)
            trainer = set_up(config, env)
        done = trainer.step >= trainer.steps
        trainer.fit()  # of a finished run nothing but a last validation that a signal cut short
    if done:
        console.print(Text(f"{folder} is done: {trainer.step} steps; give training.steps=N for more"))
    elif trainer.stop is not None:
        console.print(Text(f"stopped at step {trainer.step}: {trainer.stop}; go on with: heddle train {folder}"))
    else:
        verb = "translate -" if config.rows.paired else "generate --temperature 0.8"
        more = f" Try: heddle {verb} -m {folder}" if trainer.model.can_generate else ""
        console.print(Text(f"done: {trainer.step} steps.{more}"))
    return trainer.signals.exit_code


def _changes(config: RunConfig, path: Path) -> list[Change]:
    """Say what differs from the run as it was, where there was one."""
    return diff(_config_in(path), config) if path.exists() else []


def _config_in(path: Path) -> RunConfig:
    return decode(RunConfig, migrate_config(read_config(path), str(path)))


def resolve(target: str | None, overrides: list[str], runs: Path) -> tuple[RunConfig, Path | None]:
    """Return the config that the words mean, and the run's folder when one is to be gone on with."""
    if target is None or "=" in target:
        return apply(RECIPES["first"](), [*([target] if target else []), *overrides]), None
    if target in RECIPES:
        return apply(RECIPES[target](), overrides), None
    path = Path(target)
    if path.suffix in (".yaml", ".yml", ".json") and not path.is_dir():
        return apply(_config_in(path), overrides), None
    try:
        folder = find_run(target, runs)
    except UsageError:
        if path.exists():
            raise UsageError(f"{target}: text to learn from is given as data: heddle train data={target}") from None
        near = hint(target, [*RECIPES, *(p.name for p in runs.glob("*"))], f"; recipes: {', '.join(RECIPES)}")
        near = f"; a preset is: model={target}" if target in PRESETS else near
        raise UsageError(f"no recipe, config file or run is called {target!r}{near}") from None
    return apply(_config_in(folder / CONFIG), overrides), folder


def apply(config: RunConfig, overrides: list[str]) -> RunConfig:
    """Change a config by `key=value` words; a bare path for `data` finds its reader, a bare model is a preset."""
    given: list[str] = []
    for path, value in pairs_of(overrides):
        if path == "data" and isinstance(value, str):
            value = encode(corpus_for(value))
        if path == "model" and isinstance(value, str):
            value = _preset(value)
        if path == "training.batch" and config.rows.batch_field is not None:
            config = override(config, f"rows.{config.rows.batch_field}", value)
        config = override(config, path, value)
        given.append(path)
    for path in given:
        if config.init is not None and path.split(".")[0] in ("model", "tokenizer"):
            raise ConfigError(path, want="nothing, for model and tokenizer come with init", got=path)
    return config


def _preset(name: str) -> dict[str, str]:
    """Return a preset as a model."""
    if name not in PRESETS:
        raise ConfigError("model", want="the name of a preset (heddle list)", got=name, near=nearest(name, PRESETS))
    return {"kind": "preset", "name": name}


def new_folder(runs: Path, name: str) -> Path:
    """Make a folder for a new run: the name, or the name with the next free number."""
    for number in itertools.count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made: {error.strerror}") from None
        return folder
    raise AssertionError("unreachable")
