"""Media shards: the arrays of sounds and the like, stored as token shards are: under checksums, verified on opening.

The numbers of an array are stored by their bits, as ids of 16 or 32 bits each; shards of their own hold the shapes.
"""

import contextlib
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from heddle.core import DamageError, DataError
from heddle.data.media import MediaFormat
from heddle.data.shards.shard_writer import ShardWriter
from heddle.data.shards.shards import Shards

VALUES, SHAPES = "source", "shapes"
WORDS: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u2"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}  # what holds numbers of so many bytes


class MediaWriter:
    """Writes arrays of one format into the folder of a side; a context manager, as the writer of tokens is."""

    def __init__(self, folder: Path, format: MediaFormat, fingerprint: str) -> None:
        self.format, self._stack = format, contextlib.ExitStack()
        bits = 8 * WORDS[np.dtype(format.dtype).itemsize].itemsize
        sizes = {VALUES: 1 << bits, SHAPES: 1 << 32}
        self._writers = {
            name: ShardWriter(folder / name, vocab=vocab, end=0, fingerprint=fingerprint)
            for name, vocab in sizes.items()
        }

    def __enter__(self) -> Self:
        for writer in self._writers.values():
            self._stack.enter_context(writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def add(self, array: NDArray[Any]) -> None:
        """Add the array of one document."""
        if array.dtype != np.dtype(self.format.dtype):
            raise DataError(f"media: want arrays of {self.format.dtype}, got {array.dtype}")
        word = WORDS[array.dtype.itemsize]
        raw = np.ascontiguousarray(array).tobytes()
        raw += b"\0" * (-len(raw) % word.itemsize)
        self._writers[VALUES].add(np.frombuffer(raw, word), bytes=array.nbytes, words=0)
        self._writers[SHAPES].add(np.asarray(array.shape, np.int64), bytes=0, words=0)


class MediaShards:
    """The arrays of one side, open for reading; safe to read from several threads."""

    def __init__(self, folder: Path, format: MediaFormat, verify: bool = True) -> None:
        self.folder, self.format = folder, format
        self.values, self._shapes = Shards.open(folder / VALUES, verify), Shards.open(folder / SHAPES, verify)
        self.count, self.fingerprint = self.values.count, self.values.fingerprint
        expected = -(-self.sizes * np.dtype(format.dtype).itemsize // self.values.dtype.itemsize) + 1
        if self._shapes.count != self.count or not np.array_equal(expected, self.values.lengths):
            raise DamageError(f"{folder / SHAPES}: want the shapes of the arrays beside it, found others")

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of each array."""
        return [tuple(self._shapes.document(index)[:-1].tolist()) for index in range(self._shapes.count)]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return how many numbers each array has."""
        return np.array([int(np.prod(shape)) for shape in self.shapes], np.int64)

    def array(self, index: int) -> NDArray[Any]:
        """Return the array of one document."""
        words, shape = self.values.document(index)[:-1], self.shapes[index]
        return words.view(self.format.dtype)[: int(np.prod(shape))].reshape(shape)

    def close(self) -> None:
        """Close the files; later reads are refused."""
        self.values.close()
        self._shapes.close()
