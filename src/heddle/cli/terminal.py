"""The only way out of the command line: on a terminal, control characters other than newline and tab are escaped."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from heddle.escapes import escaped

BOLD, DIM = "1", "2"
STDOUT = "standard output"


def write(text: str = "", end: str = "\n", style: str = "") -> None:
    """Write a result to standard output: to the byte, except on a terminal."""
    stream = _result()
    _send(stream, (_styled(stream, escaped(text), style) if stream.isatty() else text) + end)


def write_bytes(data: bytes) -> None:
    """Write a result that may not be valid text."""
    stream = _result()
    if stream.isatty() or not isinstance(stream, io.TextIOWrapper):
        return write(data.decode(errors="backslashreplace"), end="")
    with _faults(stream):
        stream.flush()  # what was written before comes first
        stream.buffer.write(data)
        stream.buffer.flush()


def print_message(text: str = "", style: str = "") -> None:
    """Write a message of our own to standard output."""
    if is_open(sys.stdout):
        _send(sys.stdout, _styled(sys.stdout, escaped(text), style) + "\n")


def print_report(text: str, style: str = "") -> None:
    """Write a message of our own to standard error; one that cannot be written ends nothing."""
    if is_open(sys.stderr):
        with contextlib.suppress(OSError):
            sys.stderr.write(_styled(sys.stderr, escaped(text), style) + "\n")
            sys.stderr.flush()


def note(text: str, style: str = "") -> None:
    """Write `heddle: text` to standard error, in one line."""
    print_report(f"heddle: {' '.join(text.split())}", style)


def show_everything() -> None:
    """Write what a stream's encoding does not have as an escape, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(errors="backslashreplace")


def discard(stream: TextIO) -> None:
    """Let what a broken stream still holds go nowhere, so that it does not fail once more at the exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def is_open(stream: TextIO | None) -> bool:
    """Tell whether a stream is there: Python has none for one that the shell closed (`>&-`)."""
    return stream is not None and not stream.closed


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether somebody watches a stream."""
    return stream is not None and not stream.closed and stream.isatty()


def _result() -> TextIO:
    from heddle.core import EnvironmentFault

    if not is_open(sys.stdout):
        raise EnvironmentFault(f"{STDOUT}: closed, so the result cannot be written")
    return sys.stdout


def _styled(stream: TextIO, text: str, style: str) -> str:
    plain = not style or not stream.isatty() or os.environ.get("TERM") == "dumb" or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{style}m{text}\x1b[0m"


def _send(stream: TextIO, text: str) -> None:
    with _faults(stream):
        stream.write(text)
        stream.flush()


@contextlib.contextmanager
def _faults(stream: TextIO) -> Iterator[None]:
    """Name standard output in a fault, in the place of a disk."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EPIPE:  # typer knows what to do about a reader who has left
            error.filename = STDOUT
            discard(stream)
        raise
