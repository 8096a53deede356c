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
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

import heddle.checkpoints.hf as hf
from heddle.checkpoints.formats.restricted_unpickler import (
    MAX_PICKLE_BYTES,
    RestrictedUnpickler,
    StorageRef,
    TensorRef,
    UnsafePickle,
)
from heddle.checkpoints.store import check_writable, open_regular_file
from heddle.core import DamageError, UsageError, brief, first_line
from heddle.core.system import new_folder

PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001  # of the older layout
COPIES = 8  # how much larger than its file all tensors may be: views of one storage become separate tensors
COPIED_SUFFIXES = (".json", ".txt", ".model", ".jinja")  # files that are copied: configs, tokenizers, chat templates
MAX_COPIED_BYTES = 256 << 20  # bytes
MAX_LIST_BYTES = 4 << 20  # bytes of a zip archive's list of entries: some 60,000 of them
LOCAL, END = b"PK\3\4", b"PK\5\6"  # begin each entry of a zip archive, and its last record
FULL_16 = 0xFFFF  # as many entries, or more


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
        table = RestrictedUnpickler(self.path).run(io.BytesIO(self._bytes(entries[found[0]], MAX_PICKLE_BYTES)))
        storages = f"{root}data/"
        return table, {name.removeprefix(storages): at for name, at in entries.items() if name.startswith(storages)}

    def _legacy(self) -> tuple[Any, dict[str, ByteRange]]:
        file = io.BytesIO(self._data[:MAX_PICKLE_BYTES])
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
                raise DamageError(f"{self.path}: storage {brief(key)} is cut short or has a wrong length")
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


@final
class _BoundedReader(io.RawIOBase):
    """A mapped file for `zipfile`, which reads the whole list of entries at once: a longer one is refused."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path = data, path

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._data.seek((0, self._data.tell(), len(self._data))[whence] + offset)
        return self._data.tell()

    def read(self, size: int = -1, /) -> bytes:
        size = len(self._data) - self._data.tell() if size < 0 else size
        if size > MAX_LIST_BYTES:
            raise UnsafePickle(f"{self._path}: {size} bytes of entries, at most {MAX_LIST_BYTES} allowed")
        return self._data.read(size)


def zip_entries(data: mmap.mmap, path: Path) -> dict[str, ByteRange]:
    """Return the byte range of each entry of a zip archive; entries must be uncompressed and must not overlap."""
    try:
        with zipfile.ZipFile(_BoundedReader(data, path)) as archive:
            listed = archive.infolist()
            entries = {info.filename: _byte_range(info, data, path) for info in listed}
        (promised,) = struct.unpack_from("<H", data, data.rfind(END) + 10)
    except (zipfile.BadZipFile, struct.error, ValueError, OverflowError, NotImplementedError) as error:
        raise DamageError(f"{path}: its list of entries is cut short or damaged: {first_line(error)}") from None
    if promised != min(len(listed), FULL_16) or len(entries) < len(listed):
        raise DamageError(f"{path}: an entry is listed twice, or {promised} are declared and {len(listed)} are there")
    ends = 0
    for name, span in sorted(entries.items(), key=lambda item: item[1].start):
        if span.start < ends or span.start + span.size > len(data):
            raise DamageError(f"{path}: entry {brief(name)} overlaps another or ends past the end of the file")
        ends = span.start + span.size
    return entries


def _byte_range(info: zipfile.ZipInfo, data: mmap.mmap, path: Path) -> ByteRange:
    """Return where the bytes of an entry are: after its local header."""
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise UnsafePickle(f"{path}: entry {brief(info.filename)} is compressed, which torch.save never does")
    at = info.header_offset
    if at < 0 or data[at : at + 4] != LOCAL:
        raise DamageError(f"{path}: entry {brief(info.filename)} is not where the list says")
    names, extras = struct.unpack_from("<HH", data, at + 26)
    return ByteRange(at + 30 + names + extras, info.file_size)


# --- the folder -------------------------------------------------------------------------------------------------------


class _ShardedPickles(Mapping[str, Tensor]):
    """The tensors of several pickled files, under an index."""

    def __init__(self, source: Path, places: Mapping[str, str]) -> None:
        files = {name: PickledFile(hf.resolve_hub_link(source / name)) for name in sorted(set(places.values()))}
        for name, file in places.items():
            if name not in files[file]:
                raise DamageError(
                    f"{source / file}: the index lists tensor {brief(name)}, but the file does not contain it"
                )
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
            if path.suffix in COPIED_SUFFIXES and path.name not in (hf.CONFIG, hf.INDEX, PICKLED_INDEX, hf.CHECKSUMS):
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
        if os.fstat(file.fileno()).st_size > MAX_COPIED_BYTES:
            raise UsageError(f"{path}: larger than {MAX_COPIED_BYTES} bytes, too large for a file of this kind")
        shutil.copyfileobj(file, copy)
