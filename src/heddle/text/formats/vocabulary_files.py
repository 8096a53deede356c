"""Files of one token to a line, read as their makers do: only a line feed ends a line, and a file is bounded."""

from pathlib import Path

from heddle.core import DataError, UsageError
from heddle.text.tokenizers import LARGEST


def read_bytes(path: Path) -> bytes:
    """Return what a file holds, if it is not too large for one of its kind."""
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path}: larger than {LARGEST} bytes, too large for a file of this kind")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_utf8(path: Path) -> str:
    """Return the text of a file, no end of line changed."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: want UTF-8, got another byte at {error.start}") from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file without what ends them."""
    lines = read_utf8(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
