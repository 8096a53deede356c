"""Line-by-line input from a file or standard input; a bad line is reported, and the others are processed."""

import io
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, final

from heddle.cli.terminal import is_terminal, note

MAX_LINE_BYTES = 1 << 24  # bytes of a line
STDIN = "standard input"
BAD_LINES = 1  # exit code if some lines could not be used

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class InputLine:
    """A line without its line break, and its number."""

    number: int
    text: str


@final
class LineErrors:
    """Reports bad lines on standard error, one message each, and remembers them.

    Errors that are not caused by the line (a damaged model, a full disk, a missing package) end the command.
    """

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()

    @contextmanager
    def at(self, file: str, number: int) -> Iterator[None]:
        """Process one line; if the line is bad, report it and continue."""
        from heddle.core import ConfigError, DataError, UsageError

        try:
            yield
        except (ConfigError, DataError, UsageError) as error:
            self.report(file, number, str(error))

    def report(self, file: str, number: int, message: str) -> None:
        """Report what is wrong with a line."""
        self.lines.add((file, number))
        note(f"{name_of(file)}:{number}: {message}")

    def code(self) -> int:
        """Return the exit code: 0 if every line was good."""
        return BAD_LINES if self.lines else 0

    def run_batch(
        self, file: str, batch: Sequence[tuple[int, Item]], work: Callable[[list[Item]], Sequence[Result]]
    ) -> Iterator[tuple[int, Result]]:
        """Yield the line number and the result of each good item of a batch, in order.

        All items are processed together; if that fails, the batch is halved until the bad items are found.
        """
        from heddle.core import ConfigError, DataError, UsageError

        try:
            found = work([item for _, item in batch])
        except (ConfigError, DataError, UsageError) as error:
            if len(batch) == 1:
                self.report(file, batch[0][0], str(error))
                return
            half = len(batch) // 2
            yield from self.run_batch(file, batch[:half], work)
            yield from self.run_batch(file, batch[half:], work)
            return
        yield from ((number, result) for (number, _), result in zip(batch, found, strict=True))


def name_of(file: str) -> str:
    """Return the name of a file in messages."""
    return STDIN if file == "-" else file


@contextmanager
def valid_lines(file: str, line_errors: LineErrors) -> Iterator[Iterator[InputLine]]:
    """Open the valid lines, blank ones too; a missing or empty file is reported before a model is loaded."""
    from heddle.core import UsageError

    with open_input(file) as stream:
        if Path(file).is_file() and not Path(file).stat().st_size:
            raise UsageError(f"{file}: an empty file; want one line or more")
        yield _good(stream, file, line_errors)


@contextmanager
def valid_records(file: str, line_errors: LineErrors) -> Iterator[Iterator[tuple[int, dict[str, Any]]]]:
    """Open the number and the object of each JSON line; any other line that is not blank is reported."""
    with valid_lines(file, line_errors) as lines:
        yield _records(lines, file, line_errors)


@contextmanager
def read_lines(file: str) -> Iterator[Iterator[str]]:
    """Open all lines without their line breaks; the first that is not text ends the command."""
    with open_input(file) as stream:
        yield _all(stream, file)


def stdin_is_piped() -> bool:
    """Tell whether standard input is a pipe or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # it is missing, closed, or not a file
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def is_interactive(file: str) -> bool:
    """Tell whether the lines are typed in a terminal, so that each wants its answer at once."""
    return file == "-" and is_terminal(sys.stdin)


@contextmanager
def open_input(file: str) -> Iterator[IO[bytes]]:
    """Open a file, or standard input, which is not closed."""
    from heddle.core import UsageError

    if file == "-":
        stdin = sys.stdin
        if stdin is None:  # closed by the shell
            raise UsageError(f"{STDIN}: closed; want a file")
        yield stdin.buffer if isinstance(stdin, io.TextIOWrapper) else io.BytesIO(stdin.read().encode())
        return
    if not Path(file).exists():
        raise UsageError(f"{file}: no such file")
    if Path(file).is_dir():
        raise UsageError(f"{file}: want a file, found a folder")
    with Path(file).open("rb") as stream:
        yield stream


def _good(stream: IO[bytes], file: str, line_errors: LineErrors) -> Iterator[InputLine]:
    for number, raw in enumerate(_raw(stream, file), 1):
        with line_errors.at(file, number):
            yield InputLine(number, _text(raw))


def _all(stream: IO[bytes], file: str) -> Iterator[str]:
    from heddle.core import DataError

    for number, raw in enumerate(_raw(stream, file), 1):
        try:
            text = _text(raw)
        except DataError as error:
            raise DataError(f"{name_of(file)}:{number}: {error}") from None
        yield text


def _raw(stream: IO[bytes], file: str) -> Iterator[bytes]:
    """Yield each line as bytes of UTF-8; a line that is too long is cut behind the limit, so that it is recognized.

    The file is decoded as training data are: decompressed, and by its byte-order mark.
    """
    from heddle.core import DataError
    from heddle.data.files import UnreadableFile, decoded, read_faults

    try:
        with read_faults():
            lines = decoded(stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream))  # type: ignore[arg-type]
        while True:
            with read_faults():
                raw = line = lines.readline(MAX_LINE_BYTES + 2)  # and its line break
                while raw and not raw.endswith(b"\n"):
                    raw = lines.readline(MAX_LINE_BYTES)
            if not line:
                return
            yield line
    except UnreadableFile as fault:
        raise DataError(f"{name_of(file)}: cannot be read: {fault.reason.words}") from fault.__cause__


def _text(raw: bytes) -> str:
    from heddle.core import DataError

    line = raw.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"want at most {MAX_LINE_BYTES:,} bytes in a line, found more")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"want UTF-8 text, found byte {line[error.start]:#04x} at {error.start}") from None


def _records(lines: Iterator[InputLine], file: str, line_errors: LineErrors) -> Iterator[tuple[int, dict[str, Any]]]:
    for line in lines:
        with line_errors.at(file, line.number):
            if line.text.strip():
                yield line.number, _record(line.text)


def _record(text: str) -> dict[str, Any]:
    from heddle.core import ConfigError
    from heddle.core.system import parse_json

    found = parse_json(text)
    if not isinstance(found, dict):
        raise ConfigError("json", want="an object", got=found)
    return found
