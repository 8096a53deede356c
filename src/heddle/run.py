"""Run: training in Python, by the same path as `heddle train`; a run with its model, metrics and folder."""

import dataclasses
import html
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heddle.arguments import as_path
from heddle.core import UsageError, brief, encode, replace, user_code
from heddle.data.shards import ProgressCallback
from heddle.data.sources import CorpusConfig
from heddle.escapes import escaped
from heddle.lm import LM, load
from heddle.recipes import RECIPES
from heddle.tasks.generation import sample_writer
from heddle.training import ResolvedRun, RunConfig, resolve_run, train_run
from heddle.training.callbacks import CallbackConfig
from heddle.training.loop import Callback, Reporter, SilentReporter, Style

SHOWN = 12  # rows of a table that are printed: the first and the last
METRICS = "metrics.jsonl"


class Table(list[dict[str, Any]]):
    """Rows as dictionaries, printed as a table; what `Run.metrics` is where pandas is not installed."""

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns, in order of appearance."""
        return list(dict.fromkeys(name for row in self for name in row))

    def __getitem__(self, key: Any) -> Any:
        """Return a row by its number or, as pandas does, a column by its name; None where a row has no such value."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.columns:
            raise UsageError(f"metrics: want one of {', '.join(self.columns)}, got {brief(key)}")
        return [row.get(key) for row in self]

    def __repr__(self) -> str:
        """Show the first and the last rows, aligned."""
        rows = [self.columns, *([_cell(row.get(name)) for name in self.columns] for row in self._shown())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, f"[{len(self)} rows]"])

    def _repr_html_(self) -> str:
        """Show the same in a notebook."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        cells = (
            "".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in self.columns) for row in self._shown()
        )
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{len(self)} rows</p>"

    def _shown(self) -> Iterator[dict[str, Any]]:
        if len(self) <= SHOWN:
            yield from self
            return
        yield from self[: SHOWN // 2]
        yield dict.fromkeys(self.columns, "...")
        yield from self[-(SHOWN // 2) :]


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Run:
    """A run that was trained, whole or in part.

    stopped: why it stopped before its last step; None: it did not. `heddle.train(run.folder)` goes on.
    """

    folder: Path
    config: RunConfig
    step: int
    stopped: str | None = None

    def __repr__(self) -> str:
        """Describe the run."""
        done = f"{self.step} of {self.config.training.steps} steps"
        return f"<Run {self.folder}: {done}{f', stopped: {self.stopped}' if self.stopped else ''}>"

    @cached_property
    def lm(self) -> LM:
        """Return the model of its newest checkpoint, with its tokenizer."""
        return load(self.folder)

    @property
    def metrics(self) -> Any:
        """Return metrics.jsonl as a table: a pandas DataFrame where pandas is installed, else a `Table`."""
        path = self.folder / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        table = Table(row for row in map(json.loads, lines) if "checkpoint" not in row)  # saves are no measurements
        if find_spec("pandas") is None:
            return table
        import pandas

        return pandas.DataFrame(list(table))


class LineReporter:
    """Reports to standard output: messages as lines, progress as one line that changes, in a notebook as well."""

    def __init__(self) -> None:
        self._open = 0  # characters of a line that has not ended

    def message(self, text: str, style: Style = "plain") -> None:
        """Write a line."""
        self.end()
        sys.stdout.write(f"{escaped(text)}\n")
        sys.stdout.flush()

    def begin(self, step: int, steps: int) -> None:
        """Wait for the first numbers."""

    def progress(self, step: int, steps: int, numbers: str, milestone: bool) -> None:
        """Write over the last numbers."""
        line = f"step {step}/{steps}  {numbers}"
        sys.stdout.write(f"\r{line.ljust(self._open)}")
        sys.stdout.flush()
        self._open = len(line)

    def end(self) -> None:
        """End the line."""
        if self._open:
            sys.stdout.write("\n")
            self._open = 0

    def tokenizing(self) -> AbstractContextManager[ProgressCallback | None]:
        """Say nothing while text becomes tokens."""
        return nullcontext()


def train(  # noqa: PLR0913 - as many as the verb has
    recipe: RunConfig | str | Path = "first",
    *,
    data: CorpusConfig | str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback | CallbackConfig] = (),
    runs: str | Path = "runs",
    progress: bool = True,
    trust_run: bool = False,
) -> Run:
    """Train a model: what `heddle train` does, in Python.

    `recipe` is the name of a recipe, a config file, a RunConfig, or a run to resume (its name or folder). `overrides`
    are by dotted path: {"training.steps": 200}. Callbacks that are configs are recorded with the run; others are not,
    and are passed again to resume it. An interrupt (Ctrl-C, the stop button of a notebook) saves and returns: the run
    resumes by its folder. The run lies in a new folder under `runs`.
    """
    changes = [] if data is None else [("data", encode(data) if isinstance(data, CorpusConfig) else str(data))]
    with user_code.trusting_runs(trust_run):
        resolved = resolve_run(_target(recipe), [*changes, *(overrides or {}).items()], Path(runs), RECIPES)
        resolved, own = _with_callbacks(resolved, callbacks)
        reporter: Reporter = LineReporter() if progress else SilentReporter()
        done = train_run(
            resolved, Path(runs), reporter, lambda config, folder: sample_writer(config.data, config.seed, folder), own
        )
    if done.stopped is not None:
        reporter.message(f"stopped at step {done.step}: {done.stopped}; resume: heddle.train({str(done.folder)!r})")
    return Run(done.folder, done.config, done.step, done.stopped)


def _target(given: object) -> RunConfig | str | Path:
    found = given if isinstance(given, RunConfig) else as_path(given)
    if found is None:
        raise UsageError("train: want a recipe, a config file, a RunConfig or a run, got None")
    return found


def _with_callbacks(run: ResolvedRun, given: Sequence[object]) -> tuple[ResolvedRun, list[Callback]]:
    """Return the run with the callbacks that are configs, unless it has them, and the others."""
    own = [one for one in given if isinstance(one, Callback)] if isinstance(given, list | tuple) else []
    configs = [one for one in given if isinstance(one, CallbackConfig)] if isinstance(given, list | tuple) else []
    if not isinstance(given, list | tuple) or len(own) + len(configs) != len(given):
        raise UsageError(f"callbacks: want a list of callbacks, got {brief(given)}")
    before = run.config.callbacks
    config = replace(run.config, callbacks=(*before, *(one for one in configs if one not in before)))
    return dataclasses.replace(run, config=config), own
