"""A saved index: its pairs, the retriever's arrays, and a record with a checksum of every file and of itself."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from heddle.core import Config, ConfigError, DamageError, DataError, decode, encode, first_line, settings
from heddle.core.system import new_folder, parse_json
from heddle.tasks.retrieval.bm25 import BM25, BM25Retriever
from heddle.tasks.retrieval.embeddings import Embed, EmbeddingRetriever
from heddle.tasks.retrieval.entries import Entry
from heddle.tasks.retrieval.index import PairIndex, Retriever, distinct_texts

FORMAT = 1
RECORD, ENTRIES, ARRAYS, WORDS = "index.json", "entries.jsonl", "arrays.safetensors", "words.json"
Arrays = Mapping[str, NDArray[np.generic]]


@settings
class IndexRecord(Config):
    """What an index holds: how its texts are compared, its group columns, its files and their SHA-256.

    by: `bm25`, or the model that embedded the texts.
    """

    format: int
    by: str
    bm25: BM25
    groups: tuple[str, ...]
    entries: int
    files: dict[str, str]


def save_index(index: PairIndex, by: str, groups: tuple[str, ...], folder: Path) -> None:
    """Write an index to a new folder, which appears at once and complete."""
    retriever = index.retriever
    rows = [json.dumps([one.text, one.target, list(one.groups), one.origin]) for one in index.entries]
    files = {ENTRIES: "".join(f"{row}\n" for row in rows).encode(), ARRAYS: safetensors.save(dict(retriever.arrays()))}
    config = BM25()
    if isinstance(retriever, BM25Retriever):
        files[WORDS], config = json.dumps(list(retriever.numbers)).encode(), retriever.config
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    record = IndexRecord(format=FORMAT, by=by, bm25=config, groups=groups, entries=len(index.entries), files=digests)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: want a free path for the index, found something there")
    with new_folder(folder) as new:
        for name, data in files.items():
            (new / name).write_bytes(data)
        (new / RECORD).write_text(_record_text(encode(record)), encoding="utf-8")


def read_record(folder: Path) -> IndexRecord:
    """Return what an index holds; refuse a record that was not written so."""
    path = folder / RECORD
    if not path.is_file():
        raise DataError(f"{folder}: want the folder of an index, found no {RECORD}")
    try:
        text = path.read_bytes().decode()
        plain = parse_json(text, str(path))
        if not isinstance(plain, dict) or _record_text({k: v for k, v in plain.items() if k != "checksum"}) != text:
            raise DamageError(f"{path}: checksum mismatch: the record was changed or damaged")
        return decode(IndexRecord, {name: value for name, value in plain.items() if name != "checksum"})
    except (UnicodeDecodeError, ConfigError) as error:
        raise DamageError(f"{path}: damaged: {first_line(error)}") from None


def open_index(folder: Path, embed: Callable[[str], Embed]) -> PairIndex:
    """Return a saved index, every file of it verified; `embed` opens the model that it was made by, if any."""
    record = read_record(folder)
    if record.format != FORMAT:
        raise DamageError(f"{folder}: want an index of format {FORMAT}, found {record.format}")
    data = {name: _verified(folder / name, digest) for name, digest in record.files.items()}
    try:
        rows = [json.loads(row) for row in data[ENTRIES].decode().split("\n")[:-1]]
        entries = tuple(Entry(text, target, tuple(groups), origin) for text, target, groups, origin in rows)
        arrays = safetensors.load(data[ARRAYS])
    except (KeyError, ValueError, SafetensorError) as error:
        raise DamageError(f"{folder}: damaged: {first_line(error)}") from None
    return PairIndex(entries, _retriever(record, entries, arrays, data, embed))


def _retriever(
    record: IndexRecord, entries: tuple[Entry, ...], arrays: Arrays, data: Mapping[str, bytes], embed: Any
) -> Retriever:
    texts = distinct_texts(entries)
    found: dict[str, Any] = dict(arrays)
    if record.by == BM25Retriever.kind:
        words = {word: number for number, word in enumerate(json.loads(data[WORDS]))}
        return BM25Retriever(words, found["starts"], found["texts"], found["weights"], len(texts), record.bm25)
    return EmbeddingRetriever(found["vectors"], embed(record.by)).check(texts[0])


def _record_text(plain: dict[str, Any]) -> str:
    """Write a record with its own checksum, in one form, so that any changed byte shows."""
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return json.dumps(plain | {"checksum": digest}, indent=1, sort_keys=True) + "\n"


def _verified(path: Path, digest: str) -> bytes:
    if not path.is_file():
        raise DamageError(f"{path}: missing from the index")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise DamageError(f"{path}: checksum mismatch: the file was changed or damaged")
    return data
