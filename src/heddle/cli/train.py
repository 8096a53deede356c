"""heddle train: a recipe, a config file, or a run to resume."""

import contextlib
from pathlib import Path

from heddle.cli.annotate import annotated_yaml
from heddle.cli.console import steady_console
from heddle.cli.precheck import SEVERAL, split_target
from heddle.cli.reporter import ConsoleReporter
from heddle.cli.terminal import write
from heddle.core import HeddleError
from heddle.core.system import parse_overrides
from heddle.data.sources import CorpusConfig
from heddle.models.networks import AutoregressiveModel
from heddle.recipes import RECIPES
from heddle.tasks.generation import sample_writer
from heddle.training import ResolvedRun, TrainedRun, resolve_run, train_run

GENERATE = "generate --temperature 0.8"


def train(target: str | None, overrides: list[str], print_only: bool, runs: Path = Path("runs")) -> int:
    """Train, and return the exit code: 0, or that of the signal that ended the run."""
    run = resolve(target, overrides, runs)
    if print_only:
        write(annotated_yaml(run.config), end="")
        return 0
    reporter = ConsoleReporter(steady_console())
    done = train_run(run, runs, reporter, lambda config, folder: sample_writer(config.data, config.seed, folder))
    if done.is_main:
        reporter.message(_ending(done))
    return done.exit_code


def resolve(target: str | None, overrides: list[str], runs: Path = Path("runs")) -> ResolvedRun:
    """Return the run that the words of a command mean; without a target, the first recipe."""
    name, words = split_target(target, overrides)
    return resolve_run(name, parse_overrides(words, SEVERAL), runs, RECIPES)


def _ending(done: TrainedRun) -> str:
    """Say how a run ended, and what to do next."""
    if done.ended_before:
        return f"{done.folder} is done: {done.step} steps; give training.steps=N for more"
    if done.stopped is not None:
        return f"stopped at step {done.step}: {done.stopped}; resume with: heddle train {done.folder}"
    if (command := done.config.objective.command()) is not None:
        return f"done: {done.step} steps. Try: heddle {command} FILE -m {done.folder}"
    if done.config.rows.paired and _edits(done.config.data):
        return f"done: {done.step} steps. Try: heddle retrieve INDEX - --edit {done.folder}"
    if done.config.rows.reads_media:
        seen = done.config.data.medium in ("image", "video")
        verb = "caption FILE.png" if seen else "transcribe FILE.wav"
        return f"done: {done.step} steps. Try: heddle {verb} -m {done.folder}"
    verb = "translate -" if done.config.rows.paired else "chat" if done.config.data.chats else GENERATE
    more = f" Try: heddle {verb} -m {done.folder}" if isinstance(done.model, AutoregressiveModel) else ""
    return f"done: {done.step} steps.{more}"


def _edits(data: CorpusConfig) -> bool:
    """Tell whether a corpus of pairs has prototypes; one whose text is gone is taken as it is."""
    with contextlib.suppress(HeddleError):
        data = data.resolve("target")
    return data.edits
