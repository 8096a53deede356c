"""Commands that train many runs, compare and scale: the options they share, what was typed, and progress."""

import contextlib
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from heddle.comparison import Watcher

COMMAND = "command.txt"  # in the folder of a comparison: how it was asked for
Processes = Annotated[
    int | None,
    typer.Option(
        min=1, help="Runs side by side. Default: one on a GPU, where their time is measured, else one a core."
    ),
]
ExecutorName = Annotated[str, typer.Option(help="Where runs train: local or ray.")]
Minutes = Annotated[
    float | None, typer.Option(min=0, help="Stop after this time. Runs under way are saved, and go on next time.")
]
Whole = Annotated[bool, typer.Option("--whole", help="Start only runs that are expected to end within --minutes.")]
Again = Annotated[bool, typer.Option("--again", help="Train failed runs again.")]


def typed_before(folder: Path) -> list[str]:
    """Return the words with which the comparison of a folder was asked for."""
    from heddle.core import UsageError
    from heddle.core.system import read_text

    path = folder / COMMAND
    if not path.exists():
        raise UsageError(f"{folder}: not the folder of a comparison: it has no {COMMAND}")
    return shlex.split(read_text(path))


@contextlib.contextmanager
def watching(folder: Path, typed: list[str]) -> "Iterator[Watcher]":
    """Show lines and a bar while a comparison runs; after SIGTERM runs are saved, as after Ctrl-C."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from heddle.cli.console import steady_console
    from heddle.comparison import Standing, Watcher
    from heddle.core.system import write_text

    console = steady_console()
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=None)
            written: list[str] = []

            def print_line(text: str) -> None:
                if not written:  # the folder is there and locked by now
                    written.append(shlex.join(typed))
                    write_text(folder / COMMAND, written[0])
                console.print(text, highlight=False, markup=False, soft_wrap=True)

            def on_standing(now: Standing) -> None:
                runs = (f"{variant} {seed}: {step}/{steps}" for variant, seed, step, steps in now.training)
                bar.update(task, total=now.runs, completed=now.done, description=", ".join(runs)[:100])

            yield Watcher(print_line, on_standing)
    finally:
        signal.signal(signal.SIGTERM, before)
