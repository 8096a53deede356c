"""Media: sources that are not text, decoded to arrays when needed; a fault has the reason of a skipped document.

A new medium is a `Media` that says where it is and how it is decoded, and a source in `data/sources` that finds it.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, Positive, settings

BLOCK = 1 << 20
StoredType = Literal["uint8", "int16", "float16", "float32"]
Fault = Literal["empty", "no_file", "unreadable", "bad_media", "too_long", "too_short", "too_large"]


class MediaFault(Exception):
    """A medium that cannot be used: the reason under which it is counted, and what was found."""

    def __init__(self, reason: Fault, words: str = "") -> None:
        super().__init__(words or reason)
        self.reason, self.words = reason, words


@settings
class MediaFormat(Config):
    """How the arrays of a corpus are stored: the medium, the type of its numbers, and samples a second of sounds."""

    medium: str
    dtype: StoredType
    sample_rate: Positive | None = None


@dataclass(frozen=True)
class Media(ABC):
    """One medium: a file, how its array is stored, and perhaps a part of it.

    start, length: the part of the file, in seconds of a sound, in rows of an array; a length of None: to the end.
    """

    path: Path
    format: MediaFormat
    start: float = 0.0
    length: float | None = None

    @abstractmethod
    def decode(self) -> NDArray[Any]:
        """Return the array in the stored type; raise MediaFault where there is none that can be used."""

    @property
    def file_size(self) -> int:
        """Return about how many bytes it takes in memory, by which batches of documents are bounded."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    @property
    def digest(self) -> bytes:
        """Return a hash of the file's content and of the part of it; of a file that cannot be read, of its name."""
        return file_digest(self.path) + repr((self.start, self.length)).encode()


def file_digest(path: Path) -> bytes:
    """Return a hash of a file's content, computed once while the file does not change."""
    try:
        found = path.stat()
        return _content_hash(path, found.st_size, found.st_mtime_ns)
    except OSError:
        return str(path).encode("utf-8", "surrogateescape")


@lru_cache(maxsize=1 << 16)
def _content_hash(path: Path, size: int, changed: int) -> bytes:
    hashed = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hashed.update(block)
    return hashed.digest()


@contextmanager
def media_faults() -> Iterator[None]:
    """Turn what a missing, forbidden or vanished file raises into MediaFault."""
    try:
        yield
    except FileNotFoundError as error:
        raise MediaFault("no_file", str(error.filename or "")) from None
    except OSError as error:
        raise MediaFault("unreadable", error.strerror or str(error)) from None


def check_finite(array: NDArray[np.floating[Any]]) -> None:
    """Refuse numbers that are not finite."""
    if not np.isfinite(array).all():
        raise MediaFault("bad_media", "holds numbers that are not finite")
