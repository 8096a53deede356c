"""Safetensors files: written as a stream, and read by the reference reader after stricter checks.

The format (huggingface/safetensors): eight bytes of header length, a JSON header, then the bytes of every tensor. Its
reader is careful; the tighter bounds here keep a hostile header from taking time or memory before it is refused.
"""

import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from heddle.core import ConfigError, DamageError, brief, first_line

BLOCK = 1 << 20  # bytes written or hashed at a time
HEADER = 16 << 20  # the longest header, in bytes
SMALL = 1 << 20  # a header up to this size is always allowed; a longer one only before enough data
SHARE = 32  # bytes of data for each byte of such a header: parsed, it can take twenty times its size
ENTRIES = 100_000  # the most tensors in one file
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def check_writable(tensors: Mapping[str, Tensor], field: str) -> None:
    """Refuse what could not be read back: sparse or meta tensors, unknown dtypes, headers that are too large."""
    for name, tensor in tensors.items():
        where = f"{field}.{name}"
        if name == "__metadata__":
            raise ConfigError(where, want="another name", got=name)
        if tensor.layout != torch.strided or tensor.is_meta:
            raise ConfigError(where, want="a dense tensor that holds values", got=f"{tensor.layout} on {tensor.device}")
        if tensor.dtype not in DTYPES:
            raise ConfigError(where, want=f"one of {', '.join(DTYPES.values())}", got=tensor.dtype)
    _header(tensors, field)


def serialize(tensors: Mapping[str, Tensor], field: str) -> Iterator[memoryview]:
    """Yield the bytes of a safetensors file, one tensor in memory at a time."""
    yield memoryview(_header(tensors, field))
    for name in _order(tensors):
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        data = flat.numpy().data
        for at in range(0, len(data), BLOCK):
            yield data[at : at + BLOCK]


def _order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Put wide dtypes first, so that every tensor starts at a multiple of its item size."""
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def _header(tensors: Mapping[str, Tensor], field: str) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in _order(tensors):
        tensor, start = tensors[name], end
        end += tensor.numel() * tensor.itemsize
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    try:
        header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(field, want="names that UTF-8 can hold", got=str(error)) from None
    header += b" " * (-len(header) % 8)
    fault = header_fault(len(header), end, header)
    if fault is not None:
        raise ConfigError(field, want="tensors that can be read back", got=fault)
    return len(header).to_bytes(8, "little") + header


def header_fault(length: int, data: int, header: bytes = b"") -> str | None:
    """Return what is too large in a header, or None; files that are written are held to the same bounds."""
    most = min(HEADER, max(SMALL, data // SHARE))
    if length > most:
        return f"header of {length} bytes, at most {most} allowed before {data} bytes of tensors"
    if header.count(b"{") > ENTRIES + 2:  # one a tensor, one around all, one for metadata
        return f"more than {ENTRIES} tensors"
    return None


def open_regular_file(path: Path) -> io.BufferedReader:
    """Open a regular file to read; a link, pipe or device is refused without waiting for it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise DamageError(f"{path}: missing") from None
    except OSError as error:
        link = path.is_symlink()
        raise DamageError(f"{path}: {'a link, not a file' if link else f'cannot be read: {error.strerror}'}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DamageError(f"{path}: not a plain file")
    return os.fdopen(handle, "rb")


def open_tensors(path: Path, device: torch.device | str = "cpu") -> Any:
    """Open a safetensors file with the reference reader, after a check of its header."""
    with open_regular_file(path) as file:
        data_size = os.fstat(file.fileno()).st_size - 8
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= data_size:
            want = f"a header within {max(data_size, 0)} bytes"
            raise DamageError(f"{path}: not safetensors: want {want}, found {length}")
        fault = header_fault(length, data_size - length) or header_fault(length, data_size - length, file.read(length))
    if fault is not None:
        raise DamageError(f"{path}: {fault}")
    try:
        return safe_open(path, framework="pt", device=str(device))
    except Exception as error:  # whatever the reader cannot read is damage
        raise DamageError(f"{path}: not safetensors: {first_line(error)}") from None


def get_tensor(file: Any, name: str, path: Path) -> Tensor:
    """Read one tensor of an open file into memory of its own."""
    try:
        tensor: Tensor = file.get_tensor(name)
    except Exception as error:
        raise DamageError(f"{path}: tensor {brief(name)} cannot be read: {first_line(error)}") from None
    # On the CPU the reader maps the file into memory; a copy does not change when the file does.
    return tensor.clone()


def check_tensors(path: Path) -> None:
    """Check that a file is well-formed safetensors, reading no more than its header."""
    with open_tensors(path):
        pass


def read_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read every tensor of a safetensors file."""
    with open_tensors(path, device) as file:
        return {name: get_tensor(file, name, path) for name in file.keys()}  # noqa: SIM118 - not a mapping
