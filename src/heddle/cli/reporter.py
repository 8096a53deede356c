"""The console's reporter: what a run in training says, with a progress bar on a terminal."""

from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from heddle.cli.progress import counted
from heddle.data.shards import ProgressCallback
from heddle.escapes import escaped
from heddle.training.loop import Style

STYLES = {"plain": "", "warning": "yellow", "sample": "dim"}


class ConsoleReporter:
    """Reports a run on a console: messages as lines, steps as a bar, or as lines without a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def message(self, text: str, style: Style = "plain") -> None:
        """Print a line, as long as it is."""
        self.console.print(Text(escaped(text), style=STYLES[style]), soft_wrap=True)

    def begin(self, step: int, steps: int) -> None:
        """Start the bar."""
        self._task = self._bar.add_task("train", total=steps, completed=step, numbers="")
        self._bar.start()

    def progress(self, step: int, steps: int, numbers: str, milestone: bool) -> None:
        """Move the bar; without a terminal, print the milestones."""
        self._bar.update(self._task, completed=step, numbers=numbers)
        if milestone and not self.console.is_terminal:
            self.message(f"step {step}/{steps}  {numbers}")

    def end(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def tokenizing(self) -> AbstractContextManager[ProgressCallback]:
        """Count the documents of a corpus while they become tokens."""
        return counted("tokens", self.console)
