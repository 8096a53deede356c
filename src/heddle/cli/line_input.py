"""Lines: a file or standard input, read line by line; a bad line is told and the rest is done."""

import codecs
import io
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, final

import typer

LONGEST = 1 << 24  # bytes of a line: many times any sentence, and little memory
STDIN = "standard input"
BAD_LINES = 1  # the exit code where some lines could not be used

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class InputLine:
    """A line without its end, and where it stands."""

    number: int
    text: str


@final
class LineErrors:
    """Tells of the lines that cannot be used, one line each on standard error, and keeps count.

    What is no fault of the line (a damaged model, a full disk, a missing package) ends the whole command.
    """

    def __init__(self) -> None:
        self.told: set[tuple[str, int]] = set()

    @contextmanager
    def at(self, file: str, number: int) -> Iterator[None]:
        """Do something for one line; where the line is at fault, say so and go on."""
        from heddle.core import ConfigError, DataError, UsageError

        try:
            yield
        except (ConfigError, DataError, UsageError) as error:
            self.tell(file, number, str(error))

    def tell(self, file: str, number: int, wrong: str) -> None:
        """Say what is wrong with a line."""
        self.told.add((file, number))
        typer.echo(f"heddle: {name_of(file)}:{number}: {' '.join(wrong.split())}", err=True)

    def code(self) -> int:
        """Return the exit code: 0 where every line was good."""
        return BAD_LINES if self.told else 0

    def run_batch(
        self,
        file: str,
        batch: Sequence[tuple[int, Item]],
        work: Callable[[list[Item]], Sequence[Result]],
    ) -> Iterator[tuple[int, Result]]:
        """Yield the number and result of each item of a batch that is good, in order.

        All are worked on together; where that fails, by halves, so that a bad one costs the others little.
        """
        from heddle.core import ConfigError, DataError, UsageError

        try:
            found = work([item for _, item in batch])
        except (ConfigError, DataError, UsageError) as error:
            if len(batch) == 1:
                self.tell(file, batch[0][0], str(error))
                return
            half = len(batch) // 2
            yield from self.run_batch(file, batch[:half], work)
            yield from self.run_batch(file, batch[half:], work)
            return
        yield from ((number, result) for (number, _), result in zip(batch, found, strict=True))


def name_of(file: str) -> str:
    """Return how a file is called in messages."""
    return STDIN if file == "-" else file


@contextmanager
def valid_lines(file: str, line_errors: LineErrors) -> Iterator[Iterator[InputLine]]:
    """Give the lines that are text, blank ones too; a file that is not there is told before a model is loaded."""
    with open_input(file) as stream:
        yield _good(stream, file, line_errors)


@contextmanager
def valid_records(file: str, line_errors: LineErrors) -> Iterator[Iterator[tuple[int, dict[str, Any]]]]:
    """Give the number and the table of each line that is a JSON object; any other that is not blank is told."""
    with valid_lines(file, line_errors) as lines:
        yield _records(lines, file, line_errors)


@contextmanager
def read_lines(file: str) -> Iterator[Iterator[str]]:
    """Give all lines without their ends; the first that is no text ends the command."""
    with open_input(file) as stream:
        yield _all(stream, file)


def stdin_is_piped() -> bool:
    """Tell whether something is sent to standard input: by a pipe, or from a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none, it is closed, or it is no file
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def is_interactive(file: str) -> bool:
    """Tell whether somebody types the lines, and wants an answer to every one."""
    return file == "-" and sys.stdin.isatty()


@contextmanager
def open_input(file: str) -> Iterator[IO[bytes]]:
    """Open a file, or standard input, which stays open."""
    from heddle.core import UsageError

    if file == "-":
        stdin = sys.stdin
        yield stdin.buffer if isinstance(stdin, io.TextIOWrapper) else io.BytesIO(stdin.read().encode())
        return
    if not Path(file).exists():
        raise UsageError(f"{file}: no such file")
    if Path(file).is_dir():
        raise UsageError(f"{file}: want a file, found a folder")
    with Path(file).open("rb") as stream:
        yield stream


def _good(stream: IO[bytes], file: str, line_errors: LineErrors) -> Iterator[InputLine]:
    for number, raw in enumerate(_raw(stream), 1):
        with line_errors.at(file, number):
            yield InputLine(number, _text(raw))


def _all(stream: IO[bytes], file: str) -> Iterator[str]:
    from heddle.core import DataError

    for number, raw in enumerate(_raw(stream), 1):
        try:
            text = _text(raw)
        except DataError as error:
            raise DataError(f"{name_of(file)}:{number}: {error}") from None
        yield text


def _raw(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield each line as bytes; of one that is too long, the beginning, which shows that it is."""
    first = True
    while raw := stream.readline(LONGEST + 2):  # and its end
        line = raw
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(LONGEST)
        yield line.removeprefix(codecs.BOM_UTF8) if first else line
        first = False


def _text(raw: bytes) -> str:
    from heddle.core import DataError

    line = raw.removesuffix(b"\n").removesuffix(b"\r")
    if len(line) > LONGEST:
        raise DataError(f"want at most {LONGEST:,} bytes in a line, found more")
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
