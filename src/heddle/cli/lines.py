"""Lines: a file or standard input, read line by line."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lines_of(file: str) -> Iterator[Iterator[str]]:
    """Give the lines of a file without their ends; one that is not there is told before a model is loaded."""
    from heddle.core import UsageError

    if file == "-":
        yield _read(sys.stdin, "standard input")
        return
    if not Path(file).is_file():
        raise UsageError(f"{file}: no such file")
    with Path(file).open(encoding="utf-8") as lines:
        yield _read(lines, file)


def _read(lines: Iterable[str], file: str) -> Iterator[str]:
    from heddle.core import DataError

    try:
        for line in lines:
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: want UTF-8 text, found byte {error.object[error.start]:#04x}") from None
