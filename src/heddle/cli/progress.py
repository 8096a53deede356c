"""Progress: how far a file has come, on standard error, where somebody watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Passed = Callable[[], None]


@contextmanager
def progress(name: str, file: str | None) -> Iterator[Passed]:
    """Give a function to call after each line; quiet where nobody watches, or where the answers can be watched."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    quiet = file in (None, "-") or not console.is_terminal or sys.stdout.isatty()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(name, total=None if quiet else _count(str(file)))
        yield lambda: bar.advance(task)


def _count(file: str) -> int:
    """Count lines, of which the last may have no end."""
    count, last = 0, b"\n"
    with Path(file).open("rb") as stream:
        while block := stream.read(1 << 20):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))
