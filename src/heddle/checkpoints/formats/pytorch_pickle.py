"""Pickled PyTorch weights: the files of torch.save, read without running code, and converted to safetensors.

Two layouts are in use. Since 2020 a file is a zip archive, stored and never compressed: `NAME/data.pkl` describes the
tensors and `NAME/data/KEY` holds the numbers of each storage. Before, it was five pickles in a row (a magic number, a
version, the system, the tensors, the keys of all storages), followed by each storage with its length in front.
"""

import io
import mmap
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

import heddle.checkpoints.hf as hf
from heddle.checkpoints.formats.restricted_unpickler import (
    LARGEST,
    RestrictedUnpickler,
    StorageRef,
    TensorRef,
    UnsafePickle,
)
from heddle.checkpoints.store import check_writable, open_regular_file
from heddle.core import DamageError, UsageError, brief
from heddle.core.system import new_folder

PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001  # of the older layout
COPIES = 8  # how much larger than its file all tensors may be: views of one storage become separate tensors
KEPT = (".json", ".txt", ".model", ".jinja")  # files that are copied: configs, tokenizers, chat templates
LARGEST_KEPT = 256 << 20  # bytes
MOST_ENTRIES = 200_000

END, END_64, AT_END_64, ENTRY, LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"
FULL_16, FULL_32 = 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes in a file."""

    start: int
    size: int


@final
class PickledFile(Mapping[str, Tensor]):
    """The tensors of one file of torch.save; each is a view of the mapped file where its bytes are aligned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular_file(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise DamageError(f"{path}: empty")
            # a private map: torch wants writable memory, and the file itself is never written
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        table, self._spans = (self._zipped if self._data[:4] == LOCAL else self._legacy)()
        if not isinstance(table, dict):
            raise UnsafePickle(f"{path}: want a dict of tensors, found a {type(table).__name__}")
        self._refs: dict[str, TensorRef] = {}
        for name, ref in table.items():
            if not isinstance(name, str):
                raise UnsafePickle(f"{path}: want strings as the names of tensors, found a {type(name).__name__}")
            if not isinstance(ref, TensorRef):
                raise UnsafePickle(f"{path}: {brief(name)}: want a tensor, found a {type(ref).__name__}")
            self._check(name, ref)
            self._refs[name] = ref
        self._check_total()

    def _zipped(self) -> tuple[Any, dict[str, ByteRange]]:
        entries = zip_entries(self._data, self.path)
        found = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(found) != 1:
            raise DamageError(f"{self.path}: want one data.pkl in the archive, found {len(found)}")
        root = found[0].removesuffix("data.pkl")
        if (order := entries.get(f"{root}byteorder")) and self._bytes(order, 16) != b"little":
            raise UsageError(f"{self.path}: want little-endian numbers, found big-endian ones")
        table = RestrictedUnpickler(self.path).run(io.BytesIO(self._bytes(entries[found[0]], LARGEST)))
        storages = f"{root}data/"
        return table, {name.removeprefix(storages): at for name, at in entries.items() if name.startswith(storages)}

    def _legacy(self) -> tuple[Any, dict[str, ByteRange]]:
        file = io.BytesIO(self._data[:LARGEST])
        if RestrictedUnpickler(self.path).run(file) != MAGIC:
            raise UnsafePickle(f"{self.path}: want a file of torch.save, found another pickle")
        if RestrictedUnpickler(self.path).run(file) != VERSION:
            raise DamageError(f"{self.path}: want version {VERSION} of the older layout")
        system = RestrictedUnpickler(self.path).run(file)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise UsageError(f"{self.path}: want little-endian numbers, found big-endian ones")
        tensors = RestrictedUnpickler(self.path)
        table, keys = tensors.run(file), RestrictedUnpickler(self.path).run(file)
        if not isinstance(keys, list) or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
            raise DamageError(f"{self.path}: want a list of the storages' keys, each once")
        return table, self._legacy_storages(file.tell(), keys, tensors.storages)

    def _legacy_storages(self, at: int, keys: list[str], storages: Mapping[str, StorageRef]) -> dict[str, ByteRange]:
        """Find the storages after the pickles; the first eight bytes of each are its length."""
        spans = {}
        for key in keys:
            if key not in storages or at + 8 > len(self._data):
                raise DamageError(f"{self.path}: storage {brief(key)} is missing, or belongs to no tensor")
            (items,) = struct.unpack("<q", self._data[at : at + 8])
            size = items * storages[key].itemsize
            if items != storages[key].items or at + 8 + size > len(self._data):
                raise DamageError(f"{self.path}: storage {brief(key)} is cut short or not of the promised length")
            spans[key] = ByteRange(at + 8, size)
            at += 8 + size
        return spans

    def _bytes(self, at: ByteRange, most: int) -> bytes:
        if at.size > most:
            raise UnsafePickle(f"{self.path}: its pickle has {at.size} bytes, at most {most} allowed")
        return self._data[at.start : at.start + at.size]

    def _check(self, name: str, ref: TensorRef) -> None:
        """Compare the size of a tensor's storage with the bytes in the file."""
        span = self._spans.get(ref.storage.key)
        if span is None:
            raise DamageError(f"{self.path}: tensor {brief(name)}: storage {brief(ref.storage.key)} is missing")
        if span.size != ref.storage.items * ref.storage.itemsize:
            want = f"{ref.storage.items} numbers"
            raise DamageError(f"{self.path}: tensor {brief(name)}: want {want}, found {span.size} bytes")

    def _check_total(self) -> None:
        """Refuse tensors that share storages so often that separate copies would fill the disk."""
        size = sum(ref.numel * ref.dtype.itemsize for ref in self._refs.values())
        if size > COPIES * len(self._data):
            raise UnsafePickle(f"{self.path}: its tensors overlap: {size} bytes from a file of {len(self._data)}")

    def __getitem__(self, name: str) -> Tensor:
        ref = self._refs[name]
        if not ref.numel:
            return torch.empty(ref.shape, dtype=ref.dtype)
        span = self._spans[ref.storage.key]
        count = span.size // ref.dtype.itemsize
        if span.start % ref.dtype.itemsize == 0:
            flat = torch.frombuffer(self._data, dtype=ref.dtype, count=count, offset=span.start)
        else:
            flat = torch.frombuffer(self._data, dtype=torch.uint8, count=span.size, offset=span.start).clone()
            flat = flat[: count * ref.dtype.itemsize].view(ref.dtype)
        return flat.as_strided(ref.shape, ref.strides, ref.offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


# --- the archive ------------------------------------------------------------------------------------------------------


def zip_entries(data: mmap.mmap, path: Path) -> dict[str, ByteRange]:
    """Return the byte range of each entry of a zip archive; entries must be uncompressed and must not overlap."""
    try:
        entries = dict(_directory(data, path))
    except (struct.error, UnicodeDecodeError, OverflowError):
        raise DamageError(f"{path}: its list of entries is cut short or damaged") from None
    ends = 0
    for name, span in sorted(entries.items(), key=lambda item: item[1].start):
        if span.start < ends or span.start + span.size > len(data):
            raise DamageError(f"{path}: entry {brief(name)} overlaps another or ends past the end of the file")
        ends = span.start + span.size
    return entries


def _directory(data: mmap.mmap, path: Path) -> Iterator[tuple[str, ByteRange]]:
    at, count = _find_directory(data, path)
    seen = set()
    for _ in range(count):
        head, method = data[at : at + 4], struct.unpack_from("<H", data, at + 10)[0]
        small, size, names, extras, notes = struct.unpack_from("<IIHHH", data, at + 20)
        (local,) = struct.unpack_from("<I", data, at + 42)
        name = data[at + 46 : at + 46 + names].decode()
        if head != ENTRY or name in seen:
            raise DamageError(f"{path}: entry {brief(name)} is listed twice, or the list is damaged")
        seen.add(name)
        extra = data[at + 46 + names : at + 46 + names + extras]
        size, small, local = _zip64_sizes(extra, [size, small, local])
        if method or small != size:
            raise UnsafePickle(f"{path}: entry {brief(name)} is compressed, which torch.save never does")
        if data[local : local + 4] != LOCAL:
            raise DamageError(f"{path}: entry {brief(name)} is not where the list says")
        names_there, extras_there = struct.unpack_from("<HH", data, local + 26)
        yield name, ByteRange(local + 30 + names_there + extras_there, size)
        at += 46 + names + extras + notes


def _find_directory(data: mmap.mmap, path: Path) -> tuple[int, int]:
    """Return where the central directory begins, and how many entries it has."""
    end = data.rfind(END, max(0, len(data) - 22 - FULL_16))
    if end < 0:
        raise DamageError(f"{path}: its list of entries is missing: cut short?")
    count, _, at = struct.unpack_from("<HII", data, end + 10)
    if end >= 20 and data[end - 20 : end - 16] == AT_END_64:
        (wide,) = struct.unpack_from("<Q", data, end - 12)
        if data[wide : wide + 4] != END_64:
            raise DamageError(f"{path}: its list of entries is damaged")
        count, _, at = struct.unpack_from("<QQQ", data, wide + 32)
    if count > MOST_ENTRIES:
        raise UnsafePickle(f"{path}: {count} entries, at most {MOST_ENTRIES} allowed")
    return at, count


def _zip64_sizes(extra: bytes, sizes: list[int]) -> list[int]:
    """Replace sizes that did not fit into 32 bits by those in the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            return [next(wide, size) if size == FULL_32 else size for size in sizes]
        at += 4 + length
    return sizes


# --- the folder -------------------------------------------------------------------------------------------------------


class _ShardedPickles(Mapping[str, Tensor]):
    """The tensors of several pickled files, under an index."""

    def __init__(self, source: Path, places: Mapping[str, str]) -> None:
        files = {name: PickledFile(hf.resolve_hub_link(source / name)) for name in sorted(set(places.values()))}
        for name, file in places.items():
            if name not in files[file]:
                raise DamageError(f"{source / file}: the index promises tensor {brief(name)}, which is not there")
        self._files = {name: files[file] for name, file in places.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def unpickle_folder(source: Path, target: Path) -> list[str]:
    """Convert a folder with pickled weights to one with safetensors; return the names of the tensors.

    Code in the pickles is refused, never executed. Configs, tokenizer files and chat templates are copied.
    """
    config = hf.read_config(source)
    hf.refuse_nonempty(target)
    weights = _read(source)
    check_writable(weights, str(source))
    with new_folder(target) as new:
        for path in sorted(source.iterdir()):
            if path.suffix in KEPT and path.name not in (hf.CONFIG, hf.INDEX, PICKLED_INDEX, hf.CHECKSUMS):
                _copy(hf.resolve_hub_link(path), new / path.name)
        hf.write_folder(new, config, weights)
    return list(weights)


def _read(source: Path) -> Mapping[str, Tensor]:
    index = source / PICKLED_INDEX
    if index.exists():
        return _ShardedPickles(source, hf.read_index(index, ".bin"))
    if (source / PICKLED).exists():
        return PickledFile(hf.resolve_hub_link(source / PICKLED))
    if (source / hf.SINGLE).exists() or (source / hf.INDEX).exists():
        raise UsageError(f"{source}: its weights are safetensors already")
    raise UsageError(f"{source}: want {PICKLED} or {PICKLED_INDEX}, found neither")


def _copy(path: Path, target: Path) -> None:
    """Copy a small regular file; links, pipes and folders are skipped."""
    if path.is_symlink() or not path.is_file():
        return
    with open_regular_file(path) as file, target.open("xb") as copy:
        if os.fstat(file.fileno()).st_size > LARGEST_KEPT:
            raise UsageError(f"{path}: larger than {LARGEST_KEPT} bytes, too large for a file of this kind")
        shutil.copyfileobj(file, copy)
