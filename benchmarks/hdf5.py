"""HDF5, as much of it as Keras writes weights with: groups by symbol table, datasets of float32 in one piece.

Enough to read the weights of textgenrnn without another package (HDF5 file format specification, version 0 superblock).
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SPACE, KIND, LAYOUT, CONTINUED, TABLE = 0x1, 0x3, 0x8, 0x10, 0x11  # messages of an object
FLOAT, CONTIGUOUS = 1, 1


def read_hdf5(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return every float32 dataset of a file by its path."""
    data = path.read_bytes()
    if data[:9] != SIGNATURE + b"\0" or data[13:15] != b"\x08\x08":
        raise ValueError(f"{path}: want HDF5 with a superblock of version 0 and addresses of eight bytes")
    (root,) = struct.unpack_from("<Q", data, 64)
    return dict(_walk(data, root, ""))


def _walk(data: bytes, at: int, path: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
    messages = dict(_messages(data, at))
    if TABLE in messages:
        tree, heap = struct.unpack_from("<QQ", messages[TABLE])
        (names,) = struct.unpack_from("<Q", data, heap + 24)
        for name, header in _links(data, tree):
            start = names + name
            word = data[start : data.index(b"\0", start)].decode()
            yield from _walk(data, header, f"{path}/{word}" if path else word)
    elif LAYOUT in messages and messages[KIND][0] & 15 == FLOAT and messages[KIND][4] == 4:
        yield path, _dataset(data, messages)


def _messages(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of an object header of version 1, with those where it goes on."""
    count, size = struct.unpack_from("<HxxxxI", data, at + 2)
    blocks = [(at + 16, size)]
    for place, length in blocks:
        end = place + length
        while place < end and count:
            kind, size = struct.unpack_from("<HH", data, place)
            body = data[place + 8 : place + 8 + size]
            if kind == CONTINUED:
                blocks.append(struct.unpack_from("<QQ", body))
            yield kind, body
            place, count = place + 8 + size, count - 1


def _links(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the names' places and the headers of a group's members, through its tree."""
    if data[at : at + 4] == b"SNOD":
        (count,) = struct.unpack_from("<H", data, at + 6)
        for i in range(count):
            yield struct.unpack_from("<QQ", data, at + 8 + 40 * i)
        return
    (count,) = struct.unpack_from("<H", data, at + 6)
    for i in range(count):
        yield from _links(data, struct.unpack_from("<Q", data, at + 32 + 16 * i)[0])


def _dataset(data: bytes, messages: dict[int, bytes]) -> NDArray[np.float32]:
    space, layout = messages[SPACE], messages[LAYOUT]
    shape = struct.unpack_from(f"<{space[1]}Q", space, 8 if space[0] == 1 else 4)
    if layout[:2] != bytes([3, CONTIGUOUS]):
        raise ValueError("want datasets in one piece")
    start, size = struct.unpack_from("<QQ", layout, 2)
    return np.frombuffer(data[start : start + size], "<f4").reshape(shape)
