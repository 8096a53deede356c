"""Approximate search by an index of Faiss (Johnson et al. 2019), with its recall against the exact search.

The index only proposes candidates: their distances are computed from the keys, as in the exact search. It lies beside
the datastore as `index.faiss` with `index.json`, which has its own checksum and those of the index and of the keys.
"""

import contextlib
import importlib
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import (
    Config,
    ConfigError,
    DamageError,
    MissingExtra,
    Positive,
    UsageError,
    decode,
    encode,
    first_line,
    replace,
    settings,
)
from heddle.core.system import parse_table, read_text, write_text
from heddle.decoding.knn.datastore import KEYS, Datastore, file_digest, record_text
from heddle.decoding.knn.search import ExactSearch, NeighbourSearch, Queries

INDEX, INDEX_RECORD = "index.faiss", "index.json"
TRAINED_ON = 1 << 18  # keys that an index learns its lists from, at most
ADDED = 1 << 16  # keys added at once
SAMPLE = 1 << 8  # keys whose neighbours tell the recall


@settings
class KnnIndexConfig(Config):
    """An index of Faiss.

    factory: what Faiss builds, in its own words; None: IVF with four lists for each root of the number of keys.
    probes: lists that are searched for each query, where the index has lists.
    k: neighbours that the recall is measured with.
    """

    factory: str | None = None
    probes: Positive = 32
    k: Positive = 64


@settings
class IndexRecord(Config):
    """What an index was built of, and the share of the true neighbours that it finds."""

    factory: str
    probes: int
    keys: str
    index: str
    k: int
    recall: float


def build_index(datastore: Datastore, config: KnnIndexConfig | None = None) -> IndexRecord:
    """Build an index of a datastore's keys beside it, and measure its recall."""
    config = KnnIndexConfig() if config is None else config
    faiss, entries = _faiss(), len(datastore)
    name = f"IVF{min(4 * math.isqrt(entries), entries)},Flat" if config.factory is None else config.factory
    index = _new_index(faiss, datastore, name)
    for start in range(0, entries, ADDED):
        index.add(_keys(datastore, slice(start, start + ADDED)))
    path = datastore.folder / INDEX
    temporary = path.with_suffix(".tmp")
    try:
        faiss.write_index(index, str(temporary))
        temporary.replace(path)
    except RuntimeError as error:
        raise UsageError(f"{path}: cannot be written: {first_line(error)}") from None
    finally:
        temporary.unlink(missing_ok=True)
    keys = datastore.record.files[KEYS]
    made = IndexRecord(factory=name, probes=config.probes, keys=keys, index=file_digest(path), k=config.k, recall=0.0)
    made = replace(made, recall=measure_recall(datastore, IndexSearch(datastore, index, made.probes), config.k))
    write_text(datastore.folder / INDEX_RECORD, record_text(encode(made)))
    return made


def _new_index(faiss: Any, datastore: Datastore, name: str) -> Any:
    """Return an empty index that has learned from a sample of the keys."""
    try:
        index = faiss.index_factory(datastore.record.width, name)
        every = max(1, len(datastore) // TRAINED_ON)
        index.train(_keys(datastore, slice(None, None, every))[:TRAINED_ON])
    except RuntimeError as error:  # Faiss has this one type for all that it refuses
        said = first_line(error).rpartition("Error: ")[2]
        raise ConfigError(
            "factory", want="an index that Faiss can train on these keys", got=f"{name} ({said})"
        ) from None
    return index


def _keys(datastore: Datastore, part: slice) -> Any:
    return np.ascontiguousarray(datastore.keys[part], np.float32)


def measure_recall(datastore: Datastore, search: NeighbourSearch, k: int) -> float:
    """Return the share of the `k` nearest keys of evenly spaced keys, themselves aside, that a search finds."""
    k = min(k, len(datastore) - 1)
    if k < 1:
        return 1.0
    chosen = np.unique(np.linspace(0, len(datastore) - 1, SAMPLE).astype(np.int64))
    queries = torch.from_numpy(np.asarray(datastore.keys[chosen])).float()
    true = ExactSearch(datastore.keys, search.device).nearest(queries, k + 1).entries.tolist()
    found = search.nearest(queries, k + 1).entries.tolist()
    hits = [
        len(set(ours) & set(theirs) - {own}) / len(set(theirs) - {own})
        for own, ours, theirs in zip(chosen.tolist(), found, true, strict=True)
    ]
    return sum(hits) / len(hits)


def open_index(datastore: Datastore, device: torch.device, probes: int | None = None) -> "IndexSearch":
    """Open the index beside a datastore; refuse one of other keys."""
    path, record_path = datastore.folder / INDEX, datastore.folder / INDEX_RECORD
    if not record_path.is_file():
        raise UsageError(f"{datastore.folder}: has no index; heddle memory index builds one, or search it exactly")
    record = _read_record(record_path)
    if record.keys != datastore.record.files.get(KEYS):
        raise DamageError(f"{record_path}: is the index of other keys; build it again")
    if not path.is_file() or file_digest(path) != record.index:
        raise DamageError(f"{path}: checksum mismatch: the index was changed or damaged")
    index = _faiss().read_index(os.fspath(path))
    return IndexSearch(datastore, index, record.probes if probes is None else probes, device)


def _read_record(path: Path) -> IndexRecord:
    text = read_text(path)
    try:
        plain = parse_table(text, str(path))
        kept = {name: value for name, value in plain.items() if name != "checksum"}
        if record_text(kept) != text:
            raise DamageError(f"{path}: checksum mismatch: the record was changed or damaged")
        return decode(IndexRecord, kept)
    except ConfigError as error:
        raise DamageError(f"{path}: damaged: {first_line(error)}") from None


def _faiss() -> Any:
    try:
        return importlib.import_module("faiss")
    except ImportError:
        raise MissingExtra("faiss-cpu", "knn", "an index of a memory") from None


class IndexSearch(NeighbourSearch):
    """Search by an index of Faiss on the CPU."""

    def __init__(self, datastore: Datastore, index: Any, probes: int, device: torch.device | None = None) -> None:
        super().__init__(datastore.keys, torch.device("cpu") if device is None else device)
        self.index, faiss = index, _faiss()
        with contextlib.suppress(RuntimeError):  # an index without lists
            faiss.extract_index_ivf(index).nprobe = probes

    def candidates(self, queries: Queries, count: int) -> Int[Tensor, "queries count"]:
        _, found = self.index.search(np.ascontiguousarray(queries.cpu().numpy(), np.float32), count)
        return torch.from_numpy(found).to(self.device)
