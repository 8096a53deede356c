"""Screens: a pseudo-terminal in the place of the standard streams, to see what reaches it to the byte."""

import os
import pty
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest


class Screen:
    """All that was written to a terminal; complete once it is closed."""

    def __init__(self) -> None:
        self.raw = b""

    @property
    def text(self) -> str:
        return self.raw.decode()

    def read(self, handle: int) -> None:
        """Take what comes until the other end is closed."""
        with suppress(OSError):
            while got := os.read(handle, 1 << 16):
                self.raw += got


@contextmanager
def screen(patch: pytest.MonkeyPatch, term: str = "dumb") -> Iterator[Screen]:
    """Let standard output and standard error be one terminal that changes no byte."""
    ours, theirs = pty.openpty()
    mode = termios.tcgetattr(theirs)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    seen = Screen()
    reader = threading.Thread(target=seen.read, args=(ours,))
    reader.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as stream, patch.context() as streams:
            streams.setenv("TERM", term)
            streams.setattr(sys, "stdout", stream)
            streams.setattr(sys, "stderr", stream)
            yield seen
    finally:
        reader.join(10)
        os.close(ours)
