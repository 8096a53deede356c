"""GGUF reader (llama.cpp, ggml): metadata and tensors of a GGUF file, mapped into memory and checked.

Layout, little-endian: `GGUF`, version, number of tensors, number of metadata keys; each key with a name, a type and a
value; each tensor with a name, its dimensions from the innermost out, its quantization type and its offset in the data,
which begins after the header at a multiple of the alignment.
"""

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.checkpoints.formats.gguf_quants import QUANT_TYPES, GgmlQuantType
from heddle.checkpoints.store import open_regular_file
from heddle.core import DamageError, brief

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS, MAX_TENSORS, LONGEST = 1 << 16, 1 << 16, 1 << 24  # the last: bytes of a string
MAX_ITEMS = 1 << 20  # of all lists together
MAX_DIMENSION = 1 << 40
MAX_DEPTH = 4  # lists in lists
MAX_DIMENSIONS = 4
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
FLAG, TEXT, LIST = 7, 8, 9


@dataclass(frozen=True)
class GgufTensorInfo:
    """The shape, quantization type and position of a tensor in a file."""

    shape: tuple[int, ...]  # outermost dimension first
    quant_type: GgmlQuantType
    start: int
    stop: int


def is_gguf(path: Path) -> bool:
    """Tell whether a file is GGUF, by its name or its first bytes."""
    if path.suffix == ".gguf":
        return True
    with open_regular_file(path) as file:
        return file.read(len(MAGIC)) == MAGIC


class _Reader:
    """Reads a header value by value, and never past the end of the file."""

    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self.data, self.path, self.at = data, path, 0
        self.items = MAX_ITEMS  # that may still follow

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count < 0 or self.at + count > len(self.data):
            raise DamageError(f"{self.path}: cut short: wants {count} bytes at {self.at}, of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at].tobytes()

    def number(self, form: str) -> Any:
        """Return a number."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, most: int, what: str) -> int:
        """Return a count, refusing one that is too large."""
        found = int(self.number("<Q"))
        if found > most:
            raise DamageError(f"{self.path}: wants {found} {what}, at most {most} allowed")
        return found

    def text(self) -> str:
        """Return a string."""
        raw = self.take(self.count(LONGEST, "bytes of text"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise DamageError(f"{self.path}: want UTF-8 in its header, found {raw[:20]!r}") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        """Return a value of a type."""
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == FLAG:
            return self.take(1) != b"\0"
        if kind == TEXT:
            return self.text()
        if kind != LIST or depth > MAX_DEPTH:
            raise DamageError(f"{self.path}: want a known type of value, found {kind}")
        inner, count = self.number("<I"), self.count(self.items, "more items")
        self.items -= count
        if inner in NUMBERS:
            form = np.dtype(NUMBERS[inner].replace("b", "i1").replace("B", "u1"))
            return np.frombuffer(self.take(count * form.itemsize), form).tolist()
        return [self.value(inner, depth + 1) for _ in range(count)]


class GgufFile(Mapping[str, Tensor]):
    """The metadata and tensors of a GGUF file; each tensor is read and dequantized when needed."""

    def __init__(self, path: Path) -> None:
        open_regular_file(path).close()  # refuses a pipe or a link
        if path.stat().st_size < len(MAGIC):
            raise DamageError(f"{path}: not a GGUF file: it has {path.stat().st_size} bytes")
        self.path = path
        self._data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        read = _Reader(self._data, path)
        if read.take(4) != MAGIC:
            raise DamageError(f"{path}: not a GGUF file: it begins with {self._data[:4].tobytes()!r}")
        version = read.number("<I")
        if version not in VERSIONS:
            raise DamageError(f"{path}: want GGUF version {' or '.join(map(str, VERSIONS))}, found {version}")
        tensors, keys = read.count(MAX_TENSORS, "tensors"), read.count(MAX_KEYS, "keys")
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            name = read.text()
            if name in self.metadata:
                raise DamageError(f"{path}: key {brief(name)} occurs twice")
            self.metadata[name] = read.value(read.number("<I"))
        self._tensor_infos = self._read_tensor_infos(read, tensors)

    def _read_tensor_infos(self, read: _Reader, count: int) -> dict[str, GgufTensorInfo]:
        found = {}
        for _ in range(count):
            name, sides = read.text(), read.number("<I")
            if name in found:
                raise DamageError(f"{self.path}: tensor {brief(name)} occurs twice")
            if not 1 <= sides <= MAX_DIMENSIONS:
                raise DamageError(
                    f"{self.path}: tensor {brief(name)}: want 1 to {MAX_DIMENSIONS} dimensions, found {sides}"
                )
            shape = tuple(read.number("<Q") for _ in range(sides))[::-1]
            if not all(1 <= side <= MAX_DIMENSION for side in shape):
                raise DamageError(
                    f"{self.path}: tensor {brief(name)}: want dimensions of 1 or more, found {brief(shape)}"
                )
            kind, offset = read.number("<I"), read.number("<Q")
            if kind not in QUANT_TYPES:
                known = ", ".join(quant_type.name for quant_type in QUANT_TYPES.values())
                raise DamageError(f"{self.path}: tensor {brief(name)}: want one of {known}, found type {kind}")
            found[name] = (shape, QUANT_TYPES[kind], offset)
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise DamageError(f"{self.path}: general.alignment: want a whole number, found {alignment!r}")
        start = -(-read.at // alignment) * alignment
        tensor_infos = {name: self._tensor_info(name, *what, start) for name, what in found.items()}
        if sum(info.stop - info.start for info in tensor_infos.values()) > len(self._data):
            raise DamageError(f"{self.path}: its tensors overlap: together they are larger than the file")
        return tensor_infos

    def _tensor_info(
        self, name: str, shape: tuple[int, ...], quant_type: GgmlQuantType, offset: int, start: int
    ) -> GgufTensorInfo:
        if shape[-1] % quant_type.block_size:
            fault = f"{shape[-1]} numbers a row do not fill blocks of {quant_type.name}"
            raise DamageError(f"{self.path}: tensor {brief(name)}: {fault}")
        size = math.prod(shape) // quant_type.block_size * quant_type.type_size
        if start + offset + size > len(self._data):
            raise DamageError(f"{self.path}: tensor {brief(name)} ends past the end of the file")
        return GgufTensorInfo(shape, quant_type, start + offset, start + offset + size)

    def __getitem__(self, name: str) -> Tensor:
        info = self._tensor_infos[name]
        blocks = np.array(self._data[info.start : info.stop]).reshape(-1, info.quant_type.type_size)
        with np.errstate(all="ignore"):  # an infinite scale gives NaN, as in llama.cpp
            return torch.from_numpy(info.quant_type.dequantize(blocks).reshape(info.shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensor_infos)

    def __len__(self) -> int:
        return len(self._tensor_infos)

    def tensor_infos(self) -> Mapping[str, GgufTensorInfo]:
        """Return the shape, type and position of each tensor."""
        return self._tensor_infos

    def main_quant_type(self) -> str:
        """Return the quantization type of most weights."""
        sizes: Counter[str] = Counter()
        for info in self._tensor_infos.values():
            sizes[info.quant_type.name] += info.stop - info.start
        return sizes.most_common(1)[0][0] if sizes else "none"
