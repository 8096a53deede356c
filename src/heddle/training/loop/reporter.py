"""Reporters: where a run says what happens. The command line has one with a progress bar; in Python one is silent."""

import contextlib
from contextlib import AbstractContextManager
from typing import Literal, Protocol, final

from heddle.data.shards import ProgressCallback

Style = Literal["plain", "warning", "sample"]


class Reporter(Protocol):
    """Takes the messages of a run, and the progress of its steps."""

    def message(self, text: str, style: Style = "plain") -> None:
        """Show a message."""

    def begin(self, step: int, steps: int) -> None:
        """Training begins after step `step` of `steps`."""

    def progress(self, step: int, steps: int, numbers: str, milestone: bool) -> None:
        """Show the numbers of a step; where there is no progress bar, those of milestones are enough."""

    def end(self) -> None:
        """Training has ended."""

    def tokenizing(self) -> AbstractContextManager[ProgressCallback | None]:
        """Return what is called after each document while a corpus becomes tokens."""


@final
class SilentReporter:
    """Says nothing."""

    def message(self, text: str, style: Style = "plain") -> None:
        pass

    def begin(self, step: int, steps: int) -> None:
        pass

    def progress(self, step: int, steps: int, numbers: str, milestone: bool) -> None:
        pass

    def end(self) -> None:
        pass

    def tokenizing(self) -> AbstractContextManager[ProgressCallback | None]:
        return contextlib.nullcontext()
