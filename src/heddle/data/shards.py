"""Shards: token ids on disk under checksums, written once, verified on opening, then read from the system's page cache.

A folder holds `manifest.json` and, for each shard, `tokens-NNNNN.bin` and `ends-NNNNN.bin` (int64: where its documents
end). Every stored document closes with the `end` token, and every token file opens with one `end`, so that the token
before any token is on disk: a training pair never needs a special case. Reads use descriptors opened before
verification, not a memory map: a file that shrinks while in use gives a short read and a clear error, where a map
would kill the process with SIGBUS.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from heddle.core import ConfigError, DamageError, DataError, EnvironmentFault, encode
from heddle.data.manifest import (
    DTYPES,
    FORMAT,
    MANIFEST,
    Manifest,
    ShardFile,
    disk_faults,
    file_names,
    manifest_text,
    read_manifest,
)

BLOCK = 1 << 22  # bytes held at a time while writing and verifying


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- writing ----------------------------------------------------------------------------------------------------------


class _HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._digest = hashlib.sha256()
        self._size = 0
        self._pending = bytearray()

    def write(self, data: bytes) -> None:
        self._pending += data
        if len(self._pending) >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._digest.update(self._pending)
        view = memoryview(self._pending)
        while view:  # an unbuffered write may take less than it was given
            view = view[self._file.write(view) :]
        self._size += len(self._pending)
        self._pending = bytearray()

    def finish(self) -> ShardFile:
        """Bring everything to the disk and say what was written."""
        self._flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ShardFile(name=self._path.name, size=self._size, sha256=self._digest.hexdigest())

    def abandon(self) -> None:
        self._file.close()


class ShardWriter:
    """Write documents into a shard folder; a context manager, and only its normal exit makes the folder appear."""

    def __init__(self, folder: Path, *, vocab: int, end: int, fingerprint: str, shard_tokens: int = 1 << 27) -> None:
        if not 1 <= vocab <= 1 << 32:
            raise ConfigError("vocab", want="1 to 2**32 tokens", got=vocab)
        if not 0 <= end < vocab:
            raise ConfigError("end", want=f"a token id below {vocab}", got=end)
        if shard_tokens < 1:
            raise ConfigError("shard_tokens", want="at least 1", got=shard_tokens)
        self.folder, self._vocab, self._end = folder, vocab, end
        self._fingerprint, self._shard_tokens = fingerprint, shard_tokens
        self._dtype_name = "uint16" if vocab <= 1 << 16 else "uint32"
        self._dtype = DTYPES[self._dtype_name]
        self._closing = np.array([end], self._dtype).tobytes()
        self._files: list[ShardFile] = []
        self._open: list[_HashedFile] = []  # tokens and ends of the shard being written
        self._filled = 0  # tokens in the open shard
        self.documents = self.tokens = self.bytes = self.words = 0

    def __enter__(self) -> Self:
        with disk_faults(self.folder, "written"):
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise DataError(f"{self.folder}: exists already, and shards are written once; remove it first")
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self._temporary = self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(4)}.tmp")
            self._temporary.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with disk_faults(self.folder, "written"):
                    self._finish()
        finally:
            for file in self._open:
                file.abandon()
            shutil.rmtree(self._temporary, ignore_errors=True)  # gone already when all went well

    def add(self, ids: NDArray[Any] | Sequence[int], *, bytes: int, words: int) -> None:
        """Add one document, without its end token, and the bytes and words that it had as text."""
        given = np.asarray(ids)
        if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):
            raise DataError(f"document {self.documents}: want a row of token ids, got {given.dtype} {given.shape}")
        if given.size and not 0 <= int(given.min()) <= int(given.max()) < self._vocab:
            wrong = int(given.min()) if given.min() < 0 else int(given.max())
            raise DataError(f"document {self.documents}: token id {wrong} is not below the vocabulary of {self._vocab}")
        with disk_faults(self.folder, "written"):
            self._make_room(given.size + 1)
            self._open[0].write(given.astype(self._dtype, copy=False).tobytes() + self._closing)
            self._filled += given.size + 1
            self._open[1].write(self._filled.to_bytes(8, "little"))
        self.documents += 1
        self.tokens += given.size + 1
        self.bytes += bytes
        self.words += words

    def _make_room(self, count: int) -> None:
        if self._open and self._filled + count > self._shard_tokens:
            self._close_shard()
        if not self._open:
            for name in file_names(len(self._files) // 2):
                self._open.append(_HashedFile(self._temporary / name))
            self._open[0].write(self._closing)
            self._filled = 0

    def _close_shard(self) -> None:
        self._files += [file.finish() for file in self._open]
        self._open = []

    def _finish(self) -> None:
        self._close_shard()
        manifest = Manifest(
            format=FORMAT,
            dtype=self._dtype_name,
            vocab=self._vocab,
            end=self._end,
            fingerprint=self._fingerprint,
            documents=self.documents,
            tokens=self.tokens,
            bytes=self.bytes,
            words=self.words,
            files=tuple(self._files),
        )
        self._open = [_HashedFile(self._temporary / MANIFEST)]
        self._open[0].write(manifest_text(encode(manifest)).encode())
        self._open[0].finish()
        _sync_folder(self._temporary)
        self._temporary.rename(self.folder)
        _sync_folder(self.folder.parent)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TokenFile:
    """An open token file and the offset of its first token among all tokens."""

    path: Path
    descriptor: int
    first: int
    tokens: int

    def read(self, out: NDArray[Any], start: int) -> None:
        """Fill `out` from the token before `start` on (the opening `end` makes that the file's own offset)."""
        _read_exactly(self.path, self.descriptor, out.data.cast("B"), start * out.itemsize)


def _read_exactly(path: Path, descriptor: int, view: memoryview, offset: int) -> None:
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
    """The tokens of a prepared corpus, open for reading; safe to read from several threads."""

    def __init__(self, folder: Path, manifest: Manifest, files: list[_TokenFile], ends: NDArray[np.int64]) -> None:
        self.folder, self.ends = folder, ends
        self.fingerprint, self.vocab, self.end = manifest.fingerprint, manifest.vocab, manifest.end
        self.count, self.tokens, self.bytes, self.words = (
            manifest.documents,
            manifest.tokens,
            manifest.bytes,
            manifest.words,
        )
        self.dtype = DTYPES[manifest.dtype]
        self._files = files
        self._firsts = [file.first for file in files]
        self._closer = weakref.finalize(self, _close, [file.descriptor for file in files])

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> Self:
        """Open a shard folder; unless told otherwise, check every byte of it first."""
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
                wish = f"{manifest.documents} documents and {manifest.tokens} tokens"
                raise DamageError(f"{folder}: want {wish}, found {found[0]} and {found[1]}: the index is stale")
        except BaseException:
            _close([file.descriptor for file in files])
            raise
        return cls(folder, manifest, files, joined)

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

    def close(self) -> None:
        """Close the files; later reads are refused."""
        self._closer()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


# --- verification -----------------------------------------------------------------------------------------------------


def _open_shard(
    folder: Path, manifest: Manifest, shard: int, first: int, verify: bool
) -> tuple[_TokenFile, NDArray[np.int64]]:
    tokens, ends = manifest.files[2 * shard : 2 * shard + 2]
    with _checked_descriptor(folder, ends) as descriptor:
        index = np.empty(ends.size // 8, "<i8")
        _read_exactly(folder / ends.name, descriptor, index.data.cast("B"), 0)
        if verify:
            _compare(folder / ends.name, hashlib.sha256(index.data).hexdigest(), ends)
    item = DTYPES[manifest.dtype].itemsize
    count = tokens.size // item - 1
    sound = len(index) > 0 and index[0] > 0 and bool(np.all(np.diff(index) > 0)) and index[-1] == count
    if not sound or ends.size % 8 or tokens.size % item:
        raise DamageError(
            f"{folder / ends.name}: want rising ends up to {count} tokens of {item} bytes: stale or damaged"
        )
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


def _verify_tokens(path: Path, descriptor: int, file: ShardFile, ends: NDArray[np.int64], manifest: Manifest) -> None:
    """Check the file's checksum and, in the same pass, that ids fit the vocabulary and documents close with `end`."""
    buffer = bytearray(min(BLOCK, file.size))
    marks = np.concatenate([[0], ends])  # where `end` must stand, the opening one included
    digest, fits, at = hashlib.sha256(), True, 0
    while at < file.size:
        view = memoryview(buffer)[: min(BLOCK, file.size - at)]
        _read_exactly(path, descriptor, view, at)
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
