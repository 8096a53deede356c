"""Safetensors reader without copies: each tensor is read from disk directly into the memory of the weight.

The reference reader maps a file, and a mapped page stays in memory beside its copy. Here that reader only checks the
header; the bytes are then read into the weight itself.
"""

import math
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from heddle.checkpoints.store.safetensors_io import DTYPES, check_tensors, open_regular_file
from heddle.core import DamageError, brief
from heddle.core.system import parse_json

NAMES = {name: dtype for dtype, name in DTYPES.items()}
CHUNK = 4 << 20  # bytes read at a time where dtype or device differ
SIDES, LONGEST_SIDE = 16, 1 << 48


@dataclass(frozen=True)
class TensorExtent:
    """The dtype, shape and position of a tensor in a file."""

    dtype: torch.dtype
    shape: torch.Size
    start: int
    stop: int


@final
class TensorFile(Mapping[str, TensorExtent]):
    """The tensors of a safetensors file, which stays open as long as this object lives."""

    def __init__(self, path: Path) -> None:
        check_tensors(path)
        self.path = path
        with open_regular_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
            try:
                header = parse_json(file.read(length).decode(), str(path))
            except UnicodeDecodeError:
                raise DamageError(f"{path}: want UTF-8 in its header") from None
            data_size = os.fstat(file.fileno()).st_size - 8 - length
            self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        self._tensor_extents = {name: _tensor_extent(entry, 8 + length, data_size) for name, entry in entries.items()}
        if broken := [name for name, extent in self._tensor_extents.items() if extent is None]:
            raise DamageError(f"{path}: tensor {brief(broken[0])}: its header is wrong")

    def __getitem__(self, name: str) -> TensorExtent:
        found = self._tensor_extents[name]
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensor_extents)

    def __len__(self) -> int:
        return len(self._tensor_extents)

    def read(self, name: str) -> Tensor:
        """Return a tensor in memory of its own."""
        extent = self[name]
        made = torch.empty(extent.shape, dtype=extent.dtype)
        self.read_into(name, made)
        return made

    def read_into(self, name: str, into: Tensor) -> None:
        """Read a tensor into another of its shape, of any dtype and on any device."""
        extent, flat = self[name], into.view(-1)
        if into.dtype == extent.dtype and into.device.type == "cpu":
            self._read(name, flat.view(torch.uint8), extent.start)
            return
        step = CHUNK // extent.dtype.itemsize
        buffer = torch.empty(min(step, flat.numel()), dtype=extent.dtype)
        for at in range(0, flat.numel(), step):
            part = buffer[: min(step, flat.numel() - at)]
            self._read(name, part.view(torch.uint8), extent.start + at * extent.dtype.itemsize)
            flat[at : at + len(part)].copy_(part)

    def _read(self, name: str, into: Tensor, at: int) -> None:
        view, done = into.numpy().data, 0
        while done < len(view):
            try:
                count = os.preadv(self._handle, [view[done:]], at + done)
            except OSError as error:
                raise DamageError(f"{self.path}: tensor {brief(name)} cannot be read: {error.strerror}") from None
            if not count:
                raise DamageError(f"{self.path}: tensor {brief(name)} is cut short")
            done += count


def _tensor_extent(entry: Any, start: int, data_size: int) -> TensorExtent | None:
    """Return where a tensor lies, or None where its header is wrong; the reference reader has checked it already."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(first), int(last)]}:
            sane = all(type(side) is int and 0 <= side < LONGEST_SIDE for side in shape)
            if dtype not in NAMES or len(shape) > SIDES or not sane:
                return None
            size = math.prod(shape) * NAMES[dtype].itemsize
            if 0 <= first <= last <= data_size and last - first == size:
                return TensorExtent(NAMES[dtype], torch.Size(shape), start + first, start + last)
    return None
