"""Shards: token ids on disk under checksums, written once, verified on opening, then read from the system's page cache.

A folder holds `manifest.json` and, for each shard, `tokens-NNNNN.bin` and `ends-NNNNN.bin` (int64: where its documents
end). Every stored document closes with the `end` token, and every token file opens with one `end`, so that the token
before any token is on disk: a training pair never needs a special case. Reads use descriptors opened before
verification, not a memory map: a file that shrinks while in use gives a short read and a clear error, where a map
would kill the process with SIGBUS.

Where not every token has a loss, as in conversations of which only the answers are learnt, a folder `written` inside
holds the loss mask: shards of the same documents with 1 or 0 for each token, written, checked and read alike.
"""

import contextlib
import hashlib
import os
import weakref
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from heddle.core import DamageError, DataError, EnvironmentFault
from heddle.data.shards.shard_manifest import BLOCK, DTYPES, LOSS_MASK, ShardFile, ShardManifest, read_manifest

if TYPE_CHECKING:
    from heddle.data.shards.labelled import ExampleShards
    from heddle.data.shards.media_shards import MediaShards


@dataclass(frozen=True)
class _TokenFile:
    """An open token file and the offset of its first token among all tokens."""

    path: Path
    descriptor: int
    first: int
    tokens: int

    def read(self, out: NDArray[Any], start: int) -> None:
        """Fill `out` from the token before `start` on (the opening `end` makes that the file's own offset)."""
        read_exactly(self.path, self.descriptor, out.data.cast("B"), start * out.itemsize)


def read_exactly(path: Path, descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        try:
            got = os.preadv(descriptor, [view], offset)
        except OSError as error:
            raise EnvironmentFault(f"{path}: cannot be read: {error.strerror or error}") from None
        if got == len(view):
            return
        if got == 0:
            raise DamageError(f"{path}: want {len(view)} more bytes at {offset}, found the end: the file has shrunk")
        view, offset = view[got:], offset + got


class Shards:
    """The tokens of a prepared corpus, open for reading; safe to read from several threads.

    `loss_mask` has 1 for each token that has a loss, `counted` is how many do; None: all of them.
    """

    loss_mask: "Shards | None" = None
    examples: "ExampleShards | None" = None  # of labelled texts
    media: "MediaShards | None" = None  # of texts that belong to sounds and the like

    def __init__(self, folder: Path, manifest: ShardManifest, files: list[_TokenFile], ends: NDArray[np.int64]) -> None:
        self.folder, self.ends = folder, ends
        self.fingerprint, self.vocab, self.end = manifest.fingerprint, manifest.vocab, manifest.end
        self.begin = manifest.end if manifest.begin is None else manifest.begin
        self.count, self.tokens = manifest.documents, manifest.tokens
        self.bytes, self.words = manifest.bytes, manifest.words
        self.lost = manifest.lost  # bytes that unknown tokens stand for
        self.counted = manifest.tokens if manifest.counted is None else manifest.counted
        self.dtype = DTYPES[manifest.dtype]
        self._files = files
        self._firsts = [file.first for file in files]
        self._closer = weakref.finalize(self, _close, [file.descriptor for file in files])

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> Self:
        """Open a shard folder; by default, verify every byte of it first."""
        manifest = read_manifest(folder)
        files: list[_TokenFile] = []
        ends: list[NDArray[np.int64]] = []
        try:
            for shard in range(len(manifest.files) // 2):
                first = files[-1].first + files[-1].tokens if files else 0
                file, inner = _open_shard(folder, manifest, shard, first, verify)
                files.append(file)
                ends.append(inner + first)
            joined = np.concatenate(ends) if ends else np.zeros(0, np.int64)
            found = (len(joined), int(joined[-1]) if len(joined) else 0)
            if found != (manifest.documents, manifest.tokens):
                want = f"{manifest.documents} documents and {manifest.tokens} tokens"
                raise DamageError(f"{folder}: want {want}, found {found[0]} and {found[1]}: the index is stale")
        except BaseException:
            _close([file.descriptor for file in files])
            raise
        shards = cls(folder, manifest, files, joined)
        if manifest.counted is not None:
            shards.loss_mask = cls.open(folder / LOSS_MASK, verify)
            same = (shards.loss_mask.vocab, shards.loss_mask.fingerprint) == (2, manifest.fingerprint)
            if not same or not np.array_equal(shards.loss_mask.ends, joined):
                raise DamageError(f"{folder / LOSS_MASK}: want the loss mask of the documents beside it, found another")
        return shards

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Count the tokens of each document, its end included."""
        return np.diff(self.ends, prepend=0)

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of one document, its end included."""
        if not 0 <= index < self.count:
            raise IndexError(f"document {index} of {self.count}")
        start = int(self.ends[index - 1]) if index else 0
        out = np.empty(int(self.ends[index]) - start + 1, self.dtype)
        self.fill(out, start)
        return out[1:]

    def fill(self, out: NDArray[Any], start: int) -> None:
        """Fill `out` with the tokens from `start` on, after the one token that precedes them.

        Before a document that token is `end`.
        """
        stop = start + len(out) - 1
        if not 0 <= start <= stop <= self.tokens or out.dtype != self.dtype:
            raise IndexError(f"tokens {start} to {stop} of {self.tokens} into {out.dtype}")
        if not self._closer.alive:
            raise DataError(f"{self.folder}: already closed")
        index, done = bisect_right(self._firsts, start) - 1, 0
        while start < stop:
            file = self._files[index]
            here = min(stop, file.first + file.tokens) - start
            file.read(out[done : done + here + 1], start - file.first)
            start, done, index = start + here, done + here, index + 1

    def fill_rows(
        self,
        out: NDArray[Any],
        places: tuple[NDArray[np.int64], NDArray[np.int64]],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        """Fill spans of rows, in order, from their places on, as `fill` does: one token more than each counts."""
        stops = starts + counts
        bad = (starts < 0) | (counts < 0) | (stops > self.tokens) | (places[1] + counts >= out.shape[1])
        if bad.any() or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise IndexError(f"spans of {self.tokens} tokens into {out.shape} of {out.dtype}")
        if not self._closer.alive:
            raise DataError(f"{self.folder}: already closed")
        size, view, flat = out.itemsize, out.reshape(-1).data.cast("B"), out.reshape(-1)
        index = np.searchsorted(self._firsts, starts, "right") - 1
        within = stops <= np.append(self._firsts, self.tokens)[index + 1]
        at, offsets = places[0] * out.shape[1] + places[1], starts - np.array(self._firsts)[index]
        for span in zip(*(a.tolist() for a in (within, index, at, counts + 1, offsets, starts)), strict=True):
            inside, number, first, count, offset, start = span
            if inside:
                file = self._files[number]
                read_exactly(file.path, file.descriptor, view[first * size : (first + count) * size], offset * size)
            else:
                self.fill(flat[first : first + count], start)

    def fill_weights(self, out: NDArray[np.float32], start: int) -> None:
        """Fill `out` with the loss mask from `start` on; without one, with ones."""
        if self.loss_mask is None:
            out[:] = 1
            return
        marks = np.empty(len(out) + 1, self.loss_mask.dtype)
        self.loss_mask.fill(marks, start)
        out[:] = marks[1:]

    def opens(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which offsets are the first of a document."""
        before = np.searchsorted(self.ends, places, "right") - 1
        return np.asarray(np.where(before < 0, 0, self.ends[before]) == places)

    def close(self) -> None:
        """Close the files; later reads are refused."""
        self._closer()
        others = () if self.examples is None else (self.examples.labels, self.examples.second)
        for other in (self.loss_mask, *others, self.media):
            if other is not None:
                other.close()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


# --- verification -----------------------------------------------------------------------------------------------------


def _open_shard(
    folder: Path, manifest: ShardManifest, shard: int, first: int, verify: bool
) -> tuple[_TokenFile, NDArray[np.int64]]:
    tokens, ends = manifest.files[2 * shard : 2 * shard + 2]
    with _checked_descriptor(folder, ends) as descriptor:
        index = np.empty(ends.size // 8, "<i8")
        read_exactly(folder / ends.name, descriptor, index.data.cast("B"), 0)
        if verify:
            _compare(folder / ends.name, hashlib.sha256(index.data).hexdigest(), ends)
    item = DTYPES[manifest.dtype].itemsize
    count = tokens.size // item - 1
    sound = len(index) > 0 and index[0] > 0 and bool(np.all(np.diff(index) > 0)) and index[-1] == count
    if not sound or ends.size % 8 or tokens.size % item:
        want = f"rising ends up to {count} tokens of {item} bytes"
        raise DamageError(f"{folder / ends.name}: want {want}: stale or damaged")
    with _checked_descriptor(folder, tokens) as descriptor:
        if verify:
            _verify_tokens(folder / tokens.name, descriptor, tokens, index, manifest)
        return _TokenFile(folder / tokens.name, os.dup(descriptor), first, count), index.astype(np.int64, copy=False)


@contextlib.contextmanager
def _checked_descriptor(folder: Path, file: ShardFile) -> Iterator[int]:
    """Open a file whose size is the one written; from here on the name on disk no longer matters."""
    path = folder / file.name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DamageError(f"{path}: want {file.size} bytes, found no such file") from None
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot be opened: {error.strerror or error}") from None
    try:
        found = os.fstat(descriptor).st_size
        if found != file.size:
            raise DamageError(f"{path}: want {file.size} bytes, found {found}")
        yield descriptor
    finally:
        os.close(descriptor)


def _compare(path: Path, found: str, file: ShardFile) -> None:
    if found != file.sha256:
        raise DamageError(f"{path}: want sha256 {file.sha256[:16]}…, found {found[:16]}…: the file is damaged")


def _verify_tokens(
    path: Path, descriptor: int, file: ShardFile, ends: NDArray[np.int64], manifest: ShardManifest
) -> None:
    """Check the file's checksum and, in the same pass, that ids fit the vocabulary and documents close with `end`."""
    buffer = bytearray(min(BLOCK, file.size))
    marks = np.concatenate([[0], ends])  # where `end` must stand, the opening one included
    digest, fits, at = hashlib.sha256(), True, 0
    while at < file.size:
        view = memoryview(buffer)[: min(BLOCK, file.size - at)]
        read_exactly(path, descriptor, view, at)
        digest.update(view)
        values = np.frombuffer(view, DTYPES[manifest.dtype])
        here = at // values.itemsize
        low, high = np.searchsorted(marks, [here, here + len(values)])
        closed = bool(np.all(values[marks[low:high] - here] == manifest.end))
        fits = fits and closed and int(values.max()) < manifest.vocab
        at += len(view)
    _compare(path, digest.hexdigest(), file)
    if not fits:
        raise DamageError(f"{path}: want ids below {manifest.vocab} and documents that close with {manifest.end}")
