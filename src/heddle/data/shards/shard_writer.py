"""Writing shards: documents to token files, hashed as they are written; the folder appears whole or not at all."""

import hashlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError, check_at_least, encode
from heddle.core.system import sync_folder
from heddle.data.shards import shard_manifest


class HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._digest = hashlib.sha256()
        self._size = 0
        self._pending = bytearray()

    def write(self, data: bytes) -> None:
        self._pending += data
        if len(self._pending) >= shard_manifest.BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._digest.update(self._pending)
        view = memoryview(self._pending)
        while view:  # an unbuffered write may take less than it was given
            view = view[self._file.write(view) :]
        self._size += len(self._pending)
        self._pending = bytearray()

    def finish(self) -> shard_manifest.ShardFile:
        """Flush everything to the disk and return what was written."""
        self._flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return shard_manifest.ShardFile(name=self._path.name, size=self._size, sha256=self._digest.hexdigest())

    def abandon(self) -> None:
        self._file.close()


class ShardWriter:
    """Write documents into a shard folder; a context manager, and only its normal exit makes the folder appear.

    Documents may come with a loss mask: all of them, or none, as the first does.
    """

    def __init__(
        self,
        folder: Path,
        *,
        vocab: int,
        end: int,
        fingerprint: str,
        begin: int | None = None,
        shard_tokens: int = 1 << 27,
    ) -> None:
        if not 1 <= vocab <= 1 << 32:
            raise ConfigError("vocab", want="1 to 2**32 tokens", got=vocab)
        if not 0 <= end < vocab:
            raise ConfigError("end", want=f"a token id below {vocab}", got=end)
        check_at_least(1, shard_tokens=shard_tokens)
        self.folder, self._vocab, self._end, self._begin = folder, vocab, end, begin
        self._fingerprint, self._shard_tokens = fingerprint, shard_tokens
        self._document_ids: ShardWriter | None = None
        self._counted = 0
        self._dtype_name = "uint16" if vocab <= 1 << 16 else "uint32"
        self._dtype = shard_manifest.DTYPES[self._dtype_name]
        self._closing = np.array([end], self._dtype).tobytes()
        self._files: list[shard_manifest.ShardFile] = []
        self._open: list[HashedFile] = []  # tokens and ends of the shard being written
        self._filled = 0  # tokens in the open shard
        self.documents = self.tokens = self.bytes = self.words = self.lost = 0

    def __enter__(self) -> Self:
        with shard_manifest.disk_faults(self.folder, "written"):
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
            if self._document_ids is not None:
                self._document_ids.__exit__(kind, error, trace)
            if kind is None:
                with shard_manifest.disk_faults(self.folder, "written"):
                    self._finish()
        finally:
            for file in self._open:
                file.abandon()
            shutil.rmtree(self._temporary, ignore_errors=True)  # gone already when all went well

    def add(
        self,
        ids: NDArray[Any] | Sequence[int],
        *,
        bytes: int,
        words: int,
        counts: NDArray[np.bool_] | None = None,
        lost: int = 0,
    ) -> None:
        """Add one document, without its end token, and the bytes and words of its text that has a loss.

        `counts` is the loss mask, if not all tokens have a loss; the end token is not in it, and has none then. `lost`
        are the bytes that unknown tokens stand for.
        """
        given = np.asarray(ids)
        if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):
            raise DataError(f"document {self.documents}: want a row of token ids, got {given.dtype} {given.shape}")
        if given.size and not 0 <= int(given.min()) <= int(given.max()) < self._vocab:
            wrong = int(given.min()) if given.min() < 0 else int(given.max())
            raise DataError(f"document {self.documents}: token id {wrong} is not below the vocabulary of {self._vocab}")
        self._mark(given.size, counts)
        with shard_manifest.disk_faults(self.folder, "written"):
            self._open_shard(given.size + 1)
            self._open[0].write(given.astype(self._dtype, copy=False).tobytes() + self._closing)
            self._filled += given.size + 1
            self._open[1].write(self._filled.to_bytes(8, "little"))
        self.documents += 1
        self.tokens += given.size + 1
        self.bytes += bytes
        self.words += words
        self.lost += lost

    def _mark(self, size: int, counts: NDArray[np.bool_] | None) -> None:
        if self.documents == 0 and self._document_ids is None and counts is not None:
            folder, size_limit = self._temporary / shard_manifest.LOSS_MASK, self._shard_tokens
            marks = ShardWriter(folder, vocab=2, end=0, fingerprint=self._fingerprint, shard_tokens=size_limit)
            self._document_ids = marks.__enter__()
        if self._document_ids is None and counts is None:
            return
        if self._document_ids is None or counts is None or counts.shape != (size,):
            want = (
                "no loss mask, as in the first document"
                if self._document_ids is None
                else f"a loss mask of {size} tokens"
            )
            found = "none" if counts is None else f"one of {len(counts)}"
            raise DataError(f"document {self.documents}: want {want}, got {found}")
        self._document_ids.add(counts.astype(np.uint16), bytes=0, words=0)
        self._counted += int(counts.sum())

    def _open_shard(self, count: int) -> None:
        if self._open and self._filled + count > self._shard_tokens:
            self._close_shard()
        if not self._open:
            for name in shard_manifest.file_names(len(self._files) // 2):
                self._open.append(HashedFile(self._temporary / name))
            self._open[0].write(self._closing)
            self._filled = 0

    def _close_shard(self) -> None:
        self._files += [file.finish() for file in self._open]
        self._open = []

    def _finish(self) -> None:
        self._close_shard()
        manifest = shard_manifest.ShardManifest(
            format=shard_manifest.FORMAT,
            dtype=self._dtype_name,
            vocab=self._vocab,
            end=self._end,
            fingerprint=self._fingerprint,
            documents=self.documents,
            tokens=self.tokens,
            bytes=self.bytes,
            words=self.words,
            files=tuple(self._files),
            begin=self._begin,
            counted=None if self._document_ids is None else self._counted,
            lost=self.lost,
        )
        self._open = [HashedFile(self._temporary / shard_manifest.MANIFEST)]
        self._open[0].write(shard_manifest.manifest_text(encode(manifest)).encode())
        self._open[0].finish()
        sync_folder(self._temporary)
        self._temporary.rename(self.folder)
        sync_folder(self.folder.parent)
