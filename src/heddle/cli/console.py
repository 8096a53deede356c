"""Consoles for tables, trees and progress bars; like all output of the command line, they escape control characters."""

import errno
import io
import sys
from collections.abc import Iterable
from typing import TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from heddle.cli.terminal import STDOUT, discard, is_open, is_terminal, note
from heddle.escapes import escaped


class TerminalConsole(Console):
    """A console of which only the controls of its own bars and colours reach the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with control characters in any text escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))


class SteadyOutput(io.TextIOBase):
    """Standard output for work that outlives it: closed, full or without a reader, the rest goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self._stream = sys.stdout
        self._silent = not is_open(self._stream)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding, by which the characters of bars are chosen."""
        return "ascii" if self._silent else self._stream.encoding

    def isatty(self) -> bool:
        """Tell whether somebody watches."""
        return not self._silent and is_terminal(self._stream)

    def write(self, text: str) -> int:
        """Write, or do nothing any more."""
        if not self._silent:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._fail(error)
        return len(text)

    def _fail(self, error: OSError | ValueError) -> None:
        """Fall silent, and say so once, unless the reader has left (`heddle train | head`)."""
        self._silent = True
        discard(self._stream)
        if not isinstance(error, OSError) or error.errno != errno.EPIPE:
            reason = (error.strerror or "fails") if isinstance(error, OSError) else str(error)
            note(f"{STDOUT}: {reason}; training continues without it")


def steady_console() -> TerminalConsole:
    """Return a console whose faults end no training."""
    return TerminalConsole(file=cast("TextIO", SteadyOutput()))  # a base class of io is no TextIO to a type checker
