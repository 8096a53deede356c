"""Datastore of a kNN language model (kNN-LM, Khandelwal et al. 2020): a key for each token of a text, and the token.

The key is the hidden state that the head reads, the value the token that followed. A folder holds `memory.json` with
its own checksum and that of the files `keys.bin` and `values.bin`, which are read through a memory map. Entries are in
the order of the text, so that the values before an entry are its context.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, DamageError, DataError, UsageError, decode, first_line, settings
from heddle.core.system import parse_json
from heddle.models.networks import LanguageModel
from heddle.nn.quantization import is_quantized

FORMAT = 1
RECORD, PROGRESS, KEYS, VALUES = "memory.json", "building.json", "keys.bin", "values.bin"
FILES = (KEYS, VALUES)
BLOCK = 1 << 24  # bytes read at once
LARGEST = 1 << 20  # bytes of a record
Precision = Literal["float16", "float32"]


@settings
class DatastoreRecord(Config):
    """What a datastore holds: of which model and tokenizer, how many entries, how they were made.

    model: hash of the weights that made the keys.
    tokenizer: fingerprint of the tokenizer that made the values.
    spread: mean squared distance of the keys from their mean, the unit of the default temperature.
    files: SHA-256 of each file.
    """

    model: str
    tokenizer: str
    width: int
    vocab: int
    precision: Precision
    window: int
    stride: int
    entries: int
    documents: int
    spread: float
    files: dict[str, str]
    format: int = FORMAT


@dataclass(frozen=True)
class Datastore:
    """An opened datastore."""

    folder: Path
    record: DatastoreRecord
    keys: NDArray[Any]  # entries x width, a memory map
    values: NDArray[np.int32]  # a memory map

    def __len__(self) -> int:
        """Count the entries."""
        return self.record.entries

    @property
    def nbytes(self) -> int:
        """Count the bytes of keys and values on the disk."""
        return int(self.keys.nbytes + self.values.nbytes)

    def context(self, entry: int, tokens: int) -> list[int]:
        """Return the tokens before an entry, at most so many: the end of what its key stands for."""
        return [int(id) for id in self.values[max(0, entry - tokens) : entry]]


def open_datastore(folder: str | Path, verify: bool = True) -> Datastore:
    """Open a finished datastore; `verify` compares the checksum of every file."""
    folder = Path(folder)
    record = read_record(folder)
    sizes = file_sizes(record.entries, record.width, record.precision)
    for name in FILES:
        path = folder / name
        if not path.is_file() or path.stat().st_size != sizes[name]:
            found = f"{path.stat().st_size:,} bytes" if path.is_file() else "no file"
            raise DamageError(f"{path}: want {sizes[name]:,} bytes, found {found}")
        if verify and file_digest(path) != record.files.get(name):
            raise DamageError(f"{path}: checksum mismatch: the file was changed or damaged")
    keys = np.memmap(folder / KEYS, record.precision, "c", shape=(record.entries, record.width))
    return Datastore(folder, record, keys, np.memmap(folder / VALUES, np.int32, "c", shape=(record.entries,)))


def file_sizes(entries: int, width: int, precision: Precision) -> dict[str, int]:
    """Return the bytes of each file of a datastore with so many entries."""
    return {KEYS: entries * width * np.dtype(precision).itemsize, VALUES: entries * np.dtype(np.int32).itemsize}


def read_record(folder: Path) -> DatastoreRecord:
    """Return what a datastore holds; refuse one that is unfinished or not as it was written."""
    path = folder / RECORD
    if not path.is_file():
        if (folder / PROGRESS).is_file():
            raise DataError(f"{folder}: a datastore that was not finished; the same heddle memory build continues it")
        raise DataError(f"{folder}: want the folder of a datastore (heddle memory build), found no {RECORD}")
    try:
        text = path.read_bytes()[:LARGEST].decode()
        plain = parse_json(text, str(path))
        if not isinstance(plain, dict) or record_text({k: v for k, v in plain.items() if k != "checksum"}) != text:
            raise DamageError(f"{path}: checksum mismatch: the record was changed or damaged")
        if plain.get("format") != FORMAT:
            raise DamageError(f"{path}: want format {FORMAT}, found {plain.get('format')!r}: build it again")
        return decode(DatastoreRecord, {name: value for name, value in plain.items() if name != "checksum"})
    except (UnicodeDecodeError, ConfigError) as error:
        raise DamageError(f"{path}: damaged: {first_line(error)}") from None


def record_text(plain: dict[str, Any]) -> str:
    """Write a record with its own checksum, in one form, so that any changed byte shows."""
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return json.dumps(plain | {"checksum": digest}, indent=1, sort_keys=True) + "\n"


def check_precision(word: str) -> Precision:
    """Return the precision of keys, or refuse."""
    for known in get_args(Precision):
        if word == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError("precision", want="float16 or float32", got=word)


def file_blocks(path: Path, size: int = BLOCK) -> Iterator[bytes]:
    """Yield a file's bytes, a block at a time."""
    with path.open("rb") as file:
        while block := file.read(size):
            yield block


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    for block in file_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def weights_hash(model: LanguageModel) -> str:
    """Return a hash of a model's weights in bfloat16, so that it is the same however precisely they were loaded."""
    if is_quantized(model):
        raise UsageError("memory: want weights as floats; those of a quantized model (--weights int8, int4) are others")
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes())
    return digest.hexdigest()[:32]
