"""Progress bars on standard error, where it is a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.cli.terminal import is_terminal

if TYPE_CHECKING:
    from rich.console import Console

    from heddle.data.shards import ProgressCallback

Passed = Callable[[], None]
OFTEN = 0.1  # seconds between two looks


@contextmanager
def progress(name: str, file: str | None) -> Iterator[Passed]:
    """Yield a function to call after each line; no bar without a terminal, or where the output is on one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from heddle.cli.console import TerminalConsole

    console = TerminalConsole(stderr=True)
    quiet = file in (None, "-") or not console.is_terminal or is_terminal(sys.stdout)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(name, total=None if quiet else count_lines(str(file)))
        yield lambda: bar.advance(task)


@contextmanager
def counted(name: str, console: "Console") -> "Iterator[ProgressCallback]":
    """Yield a function to call after each document of a corpus of unknown size; no bar without a terminal."""
    from rich.progress import FileSizeColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

    many = TextColumn("{task.fields[documents]:,} documents")
    columns = SpinnerColumn(), TextColumn("{task.description}"), many, FileSizeColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        last = 0.0

        def passed(documents: int, size: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < OFTEN:
                return
            last = now
            for task in bar.task_ids or [bar.add_task(name, total=None, documents=0)]:
                bar.update(task, completed=size, documents=documents)

        yield passed


@contextmanager
def stepped(name: str, console: "Console") -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call after each of a known number of steps; no bar without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def passed(done: int, total: int) -> None:
            for task in bar.task_ids or [bar.add_task(name)]:
                bar.update(task, completed=done, total=total)

        yield passed


def count_lines(file: str) -> int:
    """Count lines, of which the last may have no end."""
    count, last = 0, b"\n"
    with Path(file).open("rb") as stream:
        while block := stream.read(1 << 20):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))
