"""Building a datastore: read a text once through a sliding window, and write down each hidden state with its token.

What is written is known to be whole up to the last group of documents, so an interrupted build continues from there;
one of another model, tokenizer, text or precision is refused.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, DamageError, DataError, UsageError, decode, encode, replace, settings
from heddle.core.system import lock_folder, parse_table, read_text, write_json, write_text
from heddle.decoding.knn.datastore import (
    FILES,
    KEYS,
    PROGRESS,
    RECORD,
    VALUES,
    Datastore,
    DatastoreRecord,
    Precision,
    file_blocks,
    file_digest,
    file_sizes,
    open_datastore,
    read_record,
    record_text,
    weights_hash,
)
from heddle.decoding.scoring import Continuation, ScoringWindows, hidden_sliding_window
from heddle.models.networks import LanguageModel

GROUP = 1 << 17  # tokens read between two points from which a build can continue
Ids = NDArray[Any]
Progress = Callable[[int, int], None]  # called with documents and bytes so far


@dataclass(frozen=True)
class BuildOptions:
    """What a datastore is built with.

    tokenizer: fingerprint of the tokenizer that made the ids.
    start: ids that begin a document, the first of which the model reads before anything else.
    """

    tokenizer: str
    start: Sequence[int]
    windows: ScoringWindows
    precision: Precision = "float16"
    most: int | None = None  # entries; None: all
    group: int = GROUP
    progress: Progress | None = None


@settings
class BuildProgress(Config):
    """How far a build has come: what it reads with, and the documents and entries that are on the disk.

    digest: hash of all documents so far.
    """

    record: DatastoreRecord
    most: int | None
    digest: str = ""


def build_datastore(
    model: LanguageModel, documents: Iterable[Ids], folder: str | Path, options: BuildOptions
) -> Datastore:
    """Build a datastore of documents in a folder, or continue what was interrupted there."""
    folder = Path(folder)
    _check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, wait=False) as free:
        if not free:
            raise UsageError(f"{folder}: another process is building there")
        _check_free(folder)  # again, for another process may have finished before the lock was ours
        with _Builder.start(model, folder, options) as builder:
            builder.run(model, _limited(documents, options.most))
            builder.finish()
    return open_datastore(folder, verify=False)


def _check_free(folder: Path) -> None:
    if (folder / RECORD).exists():
        raise UsageError(f"{folder}: holds a finished datastore; want another folder, or remove it first")
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / PROGRESS).is_file())):
        raise UsageError(f"{folder}: want a free path for the datastore, found something there")


def _limited(documents: Iterable[Ids], most: int | None) -> Iterator[Ids]:
    """Yield documents until they have so many tokens; the last is cut."""
    left = most
    for ids in documents:
        if left is not None:
            ids = ids[:left]
            left -= len(ids)
        if len(ids):
            yield ids
        if left == 0:
            return


class _Builder:
    """Writes groups of entries, and after each how far it has come."""

    def __init__(self, folder: Path, options: BuildOptions, progress: BuildProgress) -> None:
        self.folder, self.options, self.progress = folder, options, progress
        self.files: dict[str, IO[bytes]] = {}

    @classmethod
    def start(cls, model: LanguageModel, folder: Path, options: BuildOptions) -> "_Builder":
        """Begin, or continue an interrupted build of the same kind."""
        wanted = BuildProgress(record=_new_record(model, options), most=options.most)
        path = folder / PROGRESS
        if not path.is_file():
            write_json(path, encode(wanted))
            return cls(folder, options, wanted)
        try:
            found = decode(BuildProgress, parse_table(read_text(path), str(path)))
        except ConfigError as error:
            raise DamageError(f"{path}: damaged: {error}; remove the folder to build it again") from None
        _check_same(folder, wanted, found)
        return cls(folder, options, found)

    def __enter__(self) -> "_Builder":
        made = self.progress.record
        sizes = file_sizes(made.entries, made.width, made.precision)
        for name in FILES:
            path = self.folder / name
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b")
            self.files[name] = file
            if file.seek(0, os.SEEK_END) < sizes[name]:
                raise DamageError(f"{path}: shorter than what was written; remove the folder to build it again")
            file.truncate(sizes[name])  # what was written after the last point that is known
            file.seek(sizes[name])
        return self

    def __exit__(self, *error: object) -> None:
        for file in self.files.values():
            file.close()

    def run(self, model: LanguageModel, documents: Iterator[Ids]) -> None:
        """Read all documents that are not on the disk yet, group by group."""
        self._skip(documents)
        gathered, held = list[Ids](), 0
        for ids in documents:
            gathered.append(ids)
            held += len(ids)
            if held >= self.options.group:
                self._write(model, gathered)
                gathered, held = [], 0
        if gathered:
            self._write(model, gathered)

    def _skip(self, documents: Iterator[Ids]) -> None:
        """Pass over what is on the disk; refuse a text that has changed since."""
        count = 0
        digest = ""
        for ids in itertools.islice(documents, self.progress.record.documents):
            digest, count = _chained(digest, ids), count + 1
        if (count, digest) != (self.progress.record.documents, self.progress.digest):
            raise DataError(f"{self.folder}: was begun with another text; remove the folder to build it again")

    def _write(self, model: LanguageModel, documents: list[Ids]) -> None:
        made, digest, added = self.progress.record, self.progress.digest, 0
        first, *rest = self.options.start
        framed = (Continuation(ids, rest) for ids in documents)
        hidden = hidden_sliding_window(model, framed, self.options.windows, first)
        for ids, vectors in zip(documents, hidden, strict=True):
            keys = _rounded(vectors.numpy(), made.precision)
            self.files[KEYS].write(keys.tobytes())
            self.files[VALUES].write(np.asarray(ids, np.int32).tobytes())
            digest, added = _chained(digest, ids), added + len(ids)
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        now = replace(made, entries=made.entries + added, documents=made.documents + len(documents))
        self.progress = replace(self.progress, record=now, digest=digest)
        write_json(self.folder / PROGRESS, encode(self.progress))
        if self.options.progress is not None:
            self.options.progress(now.documents, self.files[KEYS].tell())

    def finish(self) -> None:
        """Write the record, which makes the datastore a finished one."""
        made = self.progress.record
        if not made.entries:
            raise DataError("memory: want one token of text or more, found none")
        files = {name: file_digest(self.folder / name) for name in FILES}
        made = replace(made, files=files, spread=_spread(self.folder / KEYS, made))
        write_text(self.folder / RECORD, record_text(encode(made)))
        (self.folder / PROGRESS).unlink()
        read_record(self.folder)


def _new_record(model: LanguageModel, options: BuildOptions) -> DatastoreRecord:
    return DatastoreRecord(
        model=weights_hash(model),
        tokenizer=options.tokenizer,
        width=model.config.width,
        vocab=model.vocab,
        precision=options.precision,
        window=options.windows.length,
        stride=options.windows.stride,
        entries=0,
        documents=0,
        spread=0.0,
        files={},
    )


def _check_same(folder: Path, wanted: BuildProgress, found: BuildProgress) -> None:
    """Refuse to continue a build that was begun with anything else."""
    for name in ("model", "tokenizer", "precision", "window", "stride", "format"):
        ours, theirs = encode(wanted.record)[name], encode(found.record)[name]
        if ours != theirs:
            raise UsageError(f"{folder}: was begun with another {name}: want {theirs}, got {ours}; remove it first")
    if wanted.most != found.most:
        raise UsageError(f"{folder}: was begun with at most {found.most} entries, not {wanted.most}; remove it first")


def _chained(digest: str, ids: Ids) -> str:
    return hashlib.sha256(digest.encode() + np.asarray(ids, np.int32).tobytes()).hexdigest()


def _rounded(vectors: NDArray[np.float32], precision: Precision) -> NDArray[Any]:
    """Return keys in the precision of a datastore; refuse numbers that it cannot hold."""
    with np.errstate(over="ignore"):
        keys = vectors.astype(precision)
    if not np.isfinite(keys).all():
        if np.isfinite(vectors).all():
            raise ConfigError("precision", want="float32, since hidden states exceed float16", got=precision)
        raise DamageError("hidden states are not finite: the weights are damaged or the training diverged")
    return keys


def _spread(path: Path, made: DatastoreRecord) -> float:
    """Return the mean squared distance of the keys from their mean."""
    row = made.width * np.dtype(made.precision).itemsize
    total, squares = np.zeros(made.width), 0.0
    for block in file_blocks(path, max(1, (1 << 24) // row) * row):
        keys = np.frombuffer(block, made.precision).reshape(-1, made.width).astype(np.float64)
        total += keys.sum(0)
        squares += float((keys**2).sum())
    mean = total / made.entries
    return max(0.0, squares / made.entries - float((mean**2).sum()))
