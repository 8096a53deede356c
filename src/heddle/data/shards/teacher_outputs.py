"""Stored teacher outputs: what a teacher says to each position of a run's rows, for distillation without the teacher.

A folder holds `teacher_outputs.json` with its own checksum and that of every file. The files are arrays over tokens:
`logprobs.bin` (of the most probable ids, and last the log of what all others have; or of all ids), `ids.bin` beside the
former, `hidden.bin` where the last hidden states are stored; and over rows: `starts.bin` (where a stored row begins),
`keys.bin` (a digest of what the teacher read) and `rows.bin` (which stored row a row of the run is; rows that read the
same are stored once). Reads use descriptors, as those of token shards do, so that a file that shrinks is an error.
"""

import hashlib
import os
import secrets
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, DamageError, DataError, decode, encode, first_line, settings
from heddle.core.system import parse_json, sync_folder
from heddle.data.shards.shard_manifest import BLOCK, ShardFile, disk_faults, manifest_text
from heddle.data.shards.shard_writer import HashedFile
from heddle.data.shards.shards import read_exactly

OUTPUTS = "teacher_outputs.json"
FORMAT = 1
LARGEST = 16 << 20
Precision = Literal["float16", "float32"]
Key = NDArray[np.uint64]


@settings
class TeacherOutputsManifest(Config):
    """What was stored, of which teacher, for which rows.

    facts: what a run that reads them must have alike, by the field that says it: seed, rows, data, temperature, ...
    """

    teacher: str
    sha256: str
    facts: dict[str, str]
    precision: Precision
    vocab: int
    columns: int
    hidden: int
    rows: int = 0
    stored: int = 0
    tokens: int = 0
    files: tuple[ShardFile, ...] = ()
    format: int = FORMAT

    @property
    def ids(self) -> int:
        """Return how many ids a position has; 0: all of the vocabulary, without a list."""
        return 0 if self.columns == self.vocab else self.columns - 1

    def arrays(self) -> dict[str, tuple[np.dtype[Any], int, int]]:
        """Return dtype, rows and columns of each file."""
        number, id = np.dtype(self.precision), np.dtype("uint16" if self.vocab <= 1 << 16 else "uint32")
        found: dict[str, tuple[np.dtype[Any], int, int]] = {"logprobs.bin": (number, self.tokens, self.columns)}
        found |= {"ids.bin": (id, self.tokens, self.ids)} if self.ids else {}
        found |= {"hidden.bin": (number, self.tokens, self.hidden)} if self.hidden else {}
        place, key = np.dtype("int64"), np.dtype("uint64")
        found |= {"starts.bin": (place, self.stored + 1, 1), "keys.bin": (key, self.stored, 1)}
        return found | {"rows.bin": (place, self.rows, 1)}


@dataclass(frozen=True)
class TeacherOutput:
    """What a teacher says to some positions: log-probabilities, their ids (None: all), and last hidden states."""

    logprobs: NDArray[Any]
    ids: NDArray[Any] | None = None
    hidden: NDArray[Any] | None = None


def key_of(parts: Sequence[NDArray[Any] | None]) -> int:
    """Return a digest of what a teacher reads of a row."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(b"-" if part is None else np.ascontiguousarray(part, np.int64).tobytes() + b"+")
    return int.from_bytes(digest.digest(), "little")


class TeacherOutputsWriter:
    """Write stored outputs; a context manager, and only its normal exit makes the folder appear."""

    def __init__(self, folder: Path, manifest: TeacherOutputsManifest) -> None:
        self.folder, self._manifest = folder, manifest
        self._known: dict[int, int] = {}
        self._rows: list[int] = []
        self._starts = [0]
        self._files: dict[str, HashedFile] = {}

    def __enter__(self) -> Self:
        with disk_faults(self.folder, "written"):
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise DataError(f"{self.folder}: exists already, and teacher outputs are written once; remove it first")
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self._temporary = self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(4)}.tmp")
            self._temporary.mkdir()
            self._files = {name: HashedFile(self._temporary / name) for name in self._manifest.arrays()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with disk_faults(self.folder, "written"):
                    self._finish()
        finally:
            for file in self._files.values():
                file.abandon()
            shutil.rmtree(self._temporary, ignore_errors=True)  # gone already when all went well

    def knows(self, key: int) -> bool:
        """Tell whether a row that reads so is stored."""
        return key in self._known

    def add(self, key: int, outputs: Callable[[], TeacherOutput]) -> None:
        """Add the next row of the run; `outputs` is called where no row that reads the same is stored."""
        if key not in self._known:
            found = outputs()
            self._known[key] = len(self._known)
            self._starts.append(self._starts[-1] + len(found.logprobs))
            parts = {"logprobs.bin": found.logprobs, "ids.bin": found.ids, "hidden.bin": found.hidden}
            with disk_faults(self.folder, "written"):
                for name, part in parts.items():
                    if name in self._files and part is not None:
                        self._files[name].write(part.astype(self._manifest.arrays()[name][0]).tobytes())
        self._rows.append(self._known[key])

    def _finish(self) -> None:
        self._files["starts.bin"].write(np.array(self._starts, np.int64).tobytes())
        self._files["keys.bin"].write(np.array(list(self._known), np.uint64).tobytes())
        self._files["rows.bin"].write(np.array(self._rows, np.int64).tobytes())
        files = tuple(file.finish() for file in self._files.values())
        plain: dict[str, Any] = dict(encode(self._manifest))
        plain |= {"rows": len(self._rows), "stored": len(self._known), "tokens": self._starts[-1]}
        plain["files"] = [encode(file) for file in files]
        path = self._temporary / OUTPUTS
        path.write_text(manifest_text(plain))
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        sync_folder(self._temporary)
        if self.folder.exists():
            self.folder.rmdir()
        self._temporary.rename(self.folder)
        sync_folder(self.folder.parent)


class TeacherOutputs:
    """Stored outputs, verified and open for reading; safe to read from several threads."""

    def __init__(self, folder: Path, manifest: TeacherOutputsManifest, files: Mapping[str, int], sha256: str) -> None:
        self.folder, self.manifest, self.sha256 = folder, manifest, sha256
        self._files, self._arrays = files, manifest.arrays()
        self._starts, self._keys, self._rows = (self._whole(name) for name in ("starts.bin", "keys.bin", "rows.bin"))
        self._closer = weakref.finalize(self, _close, list(files.values()))

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> Self:
        """Open a folder; every file is read once and compared with its checksum, unless `verify` is off."""
        manifest, sha256 = read_outputs_manifest(folder)
        files: dict[str, int] = {}
        try:
            for file in manifest.files:
                files[file.name] = _opened(folder, file, verify)
            return cls(folder, manifest, files, sha256)
        except BaseException:
            _close(list(files.values()))
            raise

    def _whole(self, name: str) -> NDArray[Any]:
        dtype, rows, columns = self._arrays[name]
        return self._read(name, 0, rows * columns).astype(dtype, copy=False)

    def _read(self, name: str, start: int, count: int) -> NDArray[Any]:
        dtype = self._arrays[name][0]
        out = np.empty(count, dtype)
        read_exactly(self.folder / name, self._files[name], out.data.cast("B"), start * dtype.itemsize)
        return out

    def row(self, number: int, key: int) -> TeacherOutput:
        """Return what was stored for a row of the run; refuse one that now reads otherwise."""
        if number >= len(self._rows):
            raise DataError(f"{self.folder}: want outputs for row {number}, found {len(self._rows)} rows")
        slot = int(self._rows[number])
        if int(self._keys[slot]) != key:
            raise DataError(f"{self.folder}: stored for other rows: row {number} of the run reads otherwise now")
        start, stop = (int(self._starts[slot + more]) for more in (0, 1))
        found = [self._tokens(name, start, stop) for name in ("logprobs.bin", "ids.bin", "hidden.bin")]
        assert found[0] is not None
        return TeacherOutput(found[0], found[1], found[2])

    def _tokens(self, name: str, start: int, stop: int) -> NDArray[Any] | None:
        if name not in self._arrays:
            return None
        columns = self._arrays[name][2]
        return self._read(name, start * columns, (stop - start) * columns).reshape(stop - start, columns)


def has_outputs(place: str | Path) -> bool:
    """Tell whether a folder holds stored teacher outputs."""
    return (Path(place) / OUTPUTS).is_file()


def read_outputs_manifest(folder: Path) -> tuple[TeacherOutputsManifest, str]:
    """Read the manifest of stored outputs, and its checksum; anything that was not written so is refused."""
    path = folder / OUTPUTS
    with disk_faults(path, "read"):
        if path.stat().st_size > LARGEST:
            raise DamageError(f"{path}: larger than {LARGEST} bytes")
        text = path.read_bytes().decode("utf-8", "replace")
    plain = parse_json(text, str(path))
    if not isinstance(plain, dict) or manifest_text({k: plain[k] for k in plain if k != "checksum"}) != text:
        raise DamageError(f"{path}: checksum mismatch: the manifest was changed or damaged")
    try:
        manifest = decode(TeacherOutputsManifest, {k: v for k, v in plain.items() if k != "checksum"})
    except ConfigError as error:
        raise DamageError(f"{path}: the manifest is damaged: {first_line(error)}") from None
    sizes = {name: dtype.itemsize * rows * columns for name, (dtype, rows, columns) in manifest.arrays().items()}
    if manifest.format != FORMAT or {file.name: file.size for file in manifest.files} != sizes:
        raise DamageError(f"{path}: want format {FORMAT} and the files {', '.join(sizes)}; found others")
    return manifest, str(plain["checksum"])


def _opened(folder: Path, file: ShardFile, verify: bool) -> int:
    """Open a file that has the size and, with `verify`, the checksum with which it was written."""
    path = folder / file.name
    with disk_faults(path, "read"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size != file.size:
            raise DamageError(f"{path}: want {file.size} bytes, found {size}")
        digest = hashlib.sha256()
        for start in range(0, file.size if verify else 0, BLOCK):
            block = np.empty(min(BLOCK, file.size - start), np.uint8)
            read_exactly(path, descriptor, block.data, start)
            digest.update(block.data)
        if verify and digest.hexdigest() != file.sha256:
            raise DamageError(f"{path}: checksum mismatch: the file is damaged")
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
