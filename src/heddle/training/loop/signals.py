"""Signals: after SIGTERM or SIGINT the run saves and stops; a second SIGINT ends the process at once, and says so."""

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}  # what the shell expects of a process ended by them


class Signals:
    """Remembers the first signal while in its `with` block.

    `unsaved` counts the steps that leaving at once would lose; None: another process speaks.
    """

    def __init__(self, unsaved: Callable[[], int] | None = None) -> None:
        self.unsaved = unsaved
        self.caught: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def name(self) -> str:
        """Name the signal."""
        return "none" if self.caught is None else self.caught.name

    @property
    def exit_code(self) -> int:
        """Return the documented exit code: 0 without a signal, 143 after SIGTERM, 130 after SIGINT."""
        return 0 if self.caught is None else CODES[self.caught]

    def relay(self, which: signal.Signals) -> None:
        """Take over a signal that another process of the run has caught."""
        self.caught = self.caught or which

    def __enter__(self) -> "Signals":
        for which in CODES:
            self._before[which] = signal.signal(which, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None and number == signal.SIGINT:
            self._report("left at once: {} steps since the last checkpoint are not saved")
            os._exit(CODES[signal.SIGINT])  # the second time: nothing half-written can be mistaken for a checkpoint
        if self.caught is None and number == signal.SIGINT:
            self._report("saving {} steps, then leaving; press Ctrl-C again to leave at once, without them")
        self.caught = self.caught or signal.Signals(number)

    def _report(self, words: str) -> None:
        """Write to standard error, by a call that may interrupt any other."""
        if self.unsaved is not None:
            with contextlib.suppress(OSError):
                os.write(2, f"heddle: {words.format(self.unsaved())}\n".encode())
