"""Decompression: from a path, folder or glob to streams of UTF-8 bytes, from gzip, xz, bzip2, zstandard, UTF-16."""

import bz2
import codecs
import glob
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from heddle.core import MissingExtra, UsageError, did_you_mean, nearest
from heddle.core.system import detect_encoding
from heddle.data.files.skip_reason import SkipReason

HEAD = 1 << 12  # bytes by which the encoding is detected
CHUNK = 1 << 10  # bytes given to zstandard at a time: at worst they decompress to some 32 MB
EMPTY_FRAMES = 1 << 12  # of zstandard, one after the other; a file of more is made to waste time
FileStamp = list[str | int]  # one file as a fingerprint sees it: name, size, time of change
COMPRESSED = {".gz", ".xz", ".bz2", ".zst"}


class UnreadableFile(Exception):
    """A file that cannot be read as text, and why; caught inside this package."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason)
        self.reason = reason


# --- finding ----------------------------------------------------------------------------------------------------------


def find_files(path: str, *patterns: str) -> list[Path]:
    """Return the files that a path means, sorted: itself, a glob's matches, or those under a folder, but hidden ones.

    Of a folder's, those whose names fit a pattern, if any is given.
    """
    here = Path(path).expanduser()
    if here.is_dir():
        return sorted(p for p in _walk(here) if not patterns or any(_fits(p.name, pattern) for pattern in patterns))
    if glob.has_magic(path) and not os.path.lexists(here):
        found = [Path(p) for p in glob.glob(str(here), recursive=True)]
        files = sorted(p for p in found if not p.is_dir())
        if not files:
            raise UsageError(f"{path}: no file matches{_suggest(here)}")
        return files
    if not os.path.lexists(here):
        raise UsageError(f"{path}: no such file{_suggest(here)}")
    return [here]


def _fits(name: str, pattern: str) -> bool:
    """Tell whether a name fits a pattern; `*.csv` fits `A.CSV` too."""
    return fnmatch(name, pattern) or fnmatch(name.lower(), pattern)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder, following each link to a folder once, so that loops end."""
    seen: set[tuple[int, int]] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        try:
            at = os.stat(root)
        except OSError:  # gone since it was listed
            continue
        if (at.st_dev, at.st_ino) in seen:
            folders.clear()
            continue
        seen.add((at.st_dev, at.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in files if not name.startswith("."))


def _suggest(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir()]
    except OSError:
        return ""
    near = nearest(path.name, names)
    return did_you_mean(printable_path(path.parent / near)) if near else ""


def printable_path(path: Path) -> str:
    """Return a path as text that can be printed and stored, even when its name is not Unicode."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def file_stamp(path: Path) -> FileStamp:
    """Return a file's name, size and time of change; one that cannot be looked at has neither."""
    try:
        found = path.stat()
    except OSError:
        return [printable_path(path), -1, -1]
    return [printable_path(path), found.st_size, found.st_mtime_ns]


def file_extension(path: Path) -> str:
    """Return a file's ending without that of its compression: `.jsonl` for `a.jsonl.gz`."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


# --- opening ----------------------------------------------------------------------------------------------------------


@contextmanager
def open_text(path: Path, encoding: str | None = None) -> Iterator[io.BufferedReader]:
    """Open a file as UTF-8 bytes without a byte-order mark; raise UnreadableFile when it is not text.

    Compression is known by its first bytes, not by the name. UTF-16 and UTF-32 are read when they carry their mark, any
    other encoding when it is named.
    """
    with read_faults():
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait forever
            raise UnreadableFile(SkipReason.UNREADABLE)
        with path.open("rb") as file, _decompressed(file) as stream:
            decoded = as_utf8(stream, encoding)
            if b"\0" in decoded.peek(HEAD)[:HEAD]:
                raise UnreadableFile(SkipReason.BINARY)
            yield decoded


def decoded(file: io.BufferedReader) -> io.BufferedReader:
    """Return what is open already, a pipe too, as UTF-8 bytes without a byte-order mark, as `open_text` does."""
    with read_faults():
        return as_utf8(_decompressed(file), None)


@contextmanager
def read_faults() -> Iterator[None]:
    """Turn what a damaged, forbidden or vanished file raises into UnreadableFile."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UnreadableFile(SkipReason.UNREADABLE) from error
    except UnicodeDecodeError as error:
        raise UnreadableFile(SkipReason.NOT_UTF8) from error


def _decompressed(file: io.BufferedReader) -> io.BufferedReader:
    head = file.peek(8)
    for magic, opener in _DECOMPRESSORS.items():
        if head.startswith(magic):
            return io.BufferedReader(opener(file), buffer_size=1 << 16)
    return file


def _open_zstd(file: BinaryIO) -> "_Zstd":
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("zstandard", "data", "reading .zst files") from None
    return _Zstd(file, zstandard)


def _open_gzip(file: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file, mode="rb")


_DECOMPRESSORS: dict[bytes, Callable[[BinaryIO], io.BufferedIOBase | io.RawIOBase]] = {
    b"\x1f\x8b": _open_gzip,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}


class _Zstd(io.RawIOBase):
    """Frames of zstandard as one stream; unlike the package's own reader, it knows a cut file from a finished one."""

    def __init__(self, file: BinaryIO, library: Any) -> None:
        self._file, self._library = file, library
        self._decompressor = library.ZstdDecompressor()
        self._empty = 0
        self._frame: Any = None  # open while there is more of it to come
        self._rest = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            block = self._rest or self._file.read(CHUNK)
            if not block and self._frame is not None:
                raise EOFError("the last frame is cut")
            if not block:
                return 0
            frame = self._frame or self._decompressor.decompressobj()
            try:
                self._ready = memoryview(frame.decompress(block))
            except self._library.ZstdError as error:
                raise OSError(str(error)) from None
            self._rest, self._frame = (frame.unused_data, None) if frame.eof else (b"", frame)
            self._empty = 0 if self._ready else self._empty + frame.eof
            if self._empty > EMPTY_FRAMES:
                raise OSError("too many empty frames")
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def as_utf8(stream: io.BufferedReader, encoding: str | None) -> io.BufferedReader:
    """Return a stream as UTF-8 without a byte-order mark; without a name, the mark tells the encoding."""
    found, mark = detect_encoding(stream.peek(HEAD)[:4])
    if encoding is None or codecs.lookup(encoding).name in ("utf-8", "utf-8-sig"):
        stream.read(mark)
        encoding = found
    return stream if encoding == "utf-8" else io.BufferedReader(_Transcoded(stream, encoding), buffer_size=1 << 16)


class _Transcoded(io.RawIOBase):
    """A stream in another encoding, read as UTF-8."""

    def __init__(self, inner: io.BufferedReader, encoding: str) -> None:
        self._inner = inner
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            block = self._inner.read(1 << 16)
            self._ready = memoryview(self._decoder.decode(block, final=not block).encode())
            if not block:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
