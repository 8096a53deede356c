"""Prepare: documents to token shards in one pass, reading, encoding and writing at once, in memory that stays flat."""

import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError, HeddleError, encode, parse_json, read_text, write_json
from heddle.data.corpus import CorpusConfig, FileSplit, Placed, Side
from heddle.data.documents import Ledger
from heddle.data.manifest import disk_faults
from heddle.data.placing import locked, workshop
from heddle.data.prepared import RECORD
from heddle.data.shards import ShardWriter
from heddle.text import Tokenizer

FORMAT = 1
BATCH = 1 << 19  # characters encoded at once: large enough to fill the cores, small enough to be forgotten
BATCH_TEXTS = 4096
AHEAD = 4  # batches read before the oldest must be written
WORKERS = 2  # one encodes while the other's ids become arrays; the library has its own threads inside

Progress = Callable[[int, int], None]  # documents and bytes so far
Ids = NDArray[np.uint32]


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data: `train` and `valid` shards; of pairs, each holds `source` and `target`."""

    folder: Path
    fingerprint: str
    pairs: bool
    ledger: dict[str, Any]
    reused: bool = False

    @property
    def train(self) -> Path:
        """Return the folder of what to learn from."""
        return self.folder / Side.TRAIN

    @property
    def valid(self) -> Path:
        """Return the folder of what is held out."""
        return self.folder / Side.VALID

    @property
    def tokenizer(self) -> Path:
        """Return the file of the tokenizer that made the ids."""
        return self.folder / "tokenizer.json"


def prepare(corpus: CorpusConfig, tokenizer: Tokenizer, folder: Path, progress: Progress | None = None) -> Prepared:
    """Write a corpus as token shards, or return the folder as it is when nothing has changed since it was written.

    The folder appears at once and complete. A stale one is replaced; one that holds anything else is refused.
    """
    fingerprint = corpus_fingerprint(corpus, tokenizer)
    with disk_faults(folder, "written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent):
            found = _standing(folder, fingerprint)
        if found is not None:
            return found
        with workshop(folder) as shop:
            new = shop / "new"
            new.mkdir()
            ledger = Ledger()
            writers = _Writers(new, tokenizer, fingerprint)
            with contextlib.closing(_encoded(tokenizer, corpus.placed(ledger))) as rows, writers:
                for side, document, ids in rows:
                    writers.add(side, document, ids)
                    if progress is not None:
                        progress(writers.documents, writers.bytes)
                corpus.check_sides(writers.counts, ledger)
            tokenizer.save(new / "tokenizer.json")
            made = Prepared(folder, fingerprint, bool(writers.pairs), ledger.plain())
            write_json(new / RECORD, _record(made, corpus, tokenizer))
            return _put(new, made)


def open_prepared(folder: Path) -> Prepared | None:
    """Return a finished folder of prepared data, or None where there is none."""
    try:
        record = parse_json(read_text(folder / RECORD), str(folder / RECORD))
        if record["format"] != FORMAT or not (folder / Side.TRAIN).is_dir() or not (folder / Side.VALID).is_dir():
            return None
        return Prepared(folder, record["fingerprint"], record["pairs"], record["ledger"], reused=True)
    except (HeddleError, KeyError, TypeError):
        return None


def corpus_fingerprint(corpus: CorpusConfig, tokenizer: Tokenizer) -> str:
    """Return a name for exactly these sources as they are now, this split and this tokenizer."""
    sources = [*corpus.sources, *([corpus.split.source] if isinstance(corpus.split, FileSplit) else [])]
    plain = [FORMAT, encode(corpus), [source.stamps() for source in sources], tokenizer.fingerprint]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


def _record(made: Prepared, corpus: CorpusConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "fingerprint": made.fingerprint,
        "tokenizer": tokenizer.fingerprint,
        "pairs": made.pairs,
        "corpus": encode(corpus),
        "ledger": made.ledger,
    }


def _standing(folder: Path, fingerprint: str) -> Prepared | None:
    """Return what stands at a folder if it is this very data; refuse to replace what is not prepared data at all."""
    found = open_prepared(folder)
    if found is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: exists and is not prepared data; choose another folder or remove it")
    return found if found is not None and found.fingerprint == fingerprint else None


def _put(new: Path, made: Prepared) -> Prepared:
    """Put a finished folder in its place; where another process was first with the same data, that stays."""
    with locked(made.folder.parent):
        found = _standing(made.folder, made.fingerprint)
        if found is not None:
            return found
        if made.folder.exists():
            made.folder.rename(new.with_name("old"))
        new.rename(made.folder)
    return made


# --- encoding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """What the writer must know of a text besides its ids."""

    bytes: int
    words: int


Encoded = tuple[Side, list[_Text], list[Ids]]


@dataclass(frozen=True, slots=True)
class _Row:
    """A document on its way to disk: one text, or the two of a pair."""

    side: Side
    texts: tuple[str, ...]


def _encoded(tokenizer: Tokenizer, placed: Iterator[Placed]) -> Generator[Encoded, None, None]:
    """Encode documents in threads, a bounded number ahead, and yield them in their order."""
    waiting: deque[tuple[list[_Row], Future[tuple[list[_Text], list[Ids]]]]] = deque()
    with ThreadPoolExecutor(WORKERS, "encode") as pool:
        try:
            for batch in _batches(placed):
                waiting.append((batch, pool.submit(_work, tokenizer, [t for row in batch for t in row.texts])))
                if len(waiting) > AHEAD:
                    yield from _finished(*waiting.popleft())
            while waiting:
                yield from _finished(*waiting.popleft())
        finally:
            for _, future in waiting:
                future.cancel()


def _batches(placed: Iterator[Placed]) -> Iterator[list[_Row]]:
    batch: list[_Row] = []
    size = 0
    for side, document in placed:
        texts = (document.text,) if document.target is None else (document.text, document.target)
        batch.append(_Row(side, texts))
        size += sum(map(len, texts))
        if size >= BATCH or len(batch) >= BATCH_TEXTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _work(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[_Text], list[Ids]]:
    return [_Text(len(text.encode()), len(text.split())) for text in texts], tokenizer.encode_arrays(texts)


def _finished(batch: list[_Row], future: Future[tuple[list[_Text], list[Ids]]]) -> Iterator[Encoded]:
    facts, ids = future.result()
    at = 0
    for row in batch:
        stop = at + len(row.texts)
        yield row.side, facts[at:stop], ids[at:stop]
        at = stop


# --- writing ----------------------------------------------------------------------------------------------------------


class _Writers:
    """The shard writers of both sides, made when the first document shows whether there are pairs."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, fingerprint: str) -> None:
        self._folder, self._tokenizer, self._fingerprint = folder, tokenizer, fingerprint
        self._stack = contextlib.ExitStack()
        self._open: dict[Side, list[ShardWriter]] = {}
        self.pairs: bool | None = None
        self.documents = self.bytes = 0
        self.counts = dict.fromkeys(Side, 0)

    def __enter__(self) -> "_Writers":
        return self

    def __exit__(self, *fault: Any) -> None:
        self._stack.__exit__(*fault)

    def add(self, side: Side, facts: list[_Text], ids: list[Ids]) -> None:
        """Write one document, or the two texts of a pair under one number."""
        if self.pairs is None:
            self._start(len(ids) == 2)
        if self.pairs != (len(ids) == 2):
            raise ConfigError("sources", want="either texts or pairs", got="both")
        for writer, fact, row in zip(self._open[side], facts, ids, strict=True):
            writer.add(row, bytes=fact.bytes, words=fact.words)
            self.bytes += fact.bytes
        self.documents += 1
        self.counts[side] += 1

    def _start(self, pairs: bool) -> None:
        self.pairs = pairs
        for side in Side:
            names = [f"{side}/source", f"{side}/target"] if pairs else [str(side)]
            self._open[side] = [self._stack.enter_context(self._writer(self._folder / name)) for name in names]

    def _writer(self, folder: Path) -> ShardWriter:
        known = self._tokenizer
        return ShardWriter(folder, vocab=known.vocab, end=known.end, fingerprint=self._fingerprint)
