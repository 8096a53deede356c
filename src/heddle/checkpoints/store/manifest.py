"""Manifest: the files of a checkpoint, each with its size and SHA-256, and a checksum of the manifest itself.

Three things are the same in every format: the name of the file, its field `format`, and the rule for the checksum.
A migration may change everything else.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.checkpoints.store.safetensors_io import check_tensors, open_regular_file
from heddle.core import (
    VERSION,
    Config,
    ConfigError,
    DamageError,
    UsageError,
    brief,
    decode,
    encode,
    first_line,
    settings,
)
from heddle.core.system import parse_json

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.json"
CONFIG = "config.json"  # of the run
WEIGHTS = ".safetensors"
TEXT_SUFFIXES = (".json", ".jsonl", ".yaml", ".txt", ".jinja")  # of text files
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
LIMITS = {MANIFEST: 1 << 20, STATE: 4 << 20, CONFIG: 256 << 10}  # bytes; all others:
LONGEST_TEXT = 64 << 20  # large vocabularies make long tokenizer files
MAX_VALUES = 200_000  # in a state: parsed, a value can take 20 times its size; long lists belong in tensors


@settings
class FileDigest(Config):
    """The size and SHA-256 of a file."""

    bytes: int
    sha256: str


@settings
class Manifest(Config):
    """The files of a checkpoint, with its step and metric."""

    format: int = FORMAT
    writer: str
    step: int
    metric: float | None
    files: dict[str, FileDigest]

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ConfigError("step", want="0 or more", got=self.step)
        for name in self.files:
            check_name(name)
        if STATE not in self.files:
            raise ConfigError("files", want=f"{STATE} among them", got=sorted(self.files))


JsonData = Any


def unchanged(data: JsonData) -> JsonData:
    """Return data unchanged."""
    return data


@dataclass(frozen=True)
class Migration:
    """How the JSON data of one format becomes that of the next."""

    manifest: Callable[[JsonData], JsonData] = unchanged
    state: Callable[[JsonData], JsonData] = unchanged


MIGRATIONS: dict[int, Migration] = {}  # format -> how to reach format + 1


def check_name(name: str, field: str = "files") -> None:
    """Refuse a file name that leaves the folder, is hidden, or is of neither tensors nor text."""
    if not NAME.fullmatch(name) or not name.endswith((WEIGHTS, *TEXT_SUFFIXES)) or name == MANIFEST:
        want = f"a plain file name that ends in {', '.join((WEIGHTS, *TEXT_SUFFIXES))}"
        raise ConfigError(field, want=want, got=name)


def parse_state(text: str, name: str) -> JsonData:
    """Parse a state, after a check of how many values it holds."""
    if sum(text.count(sign) for sign in "[{,") > MAX_VALUES:
        raise ConfigError(name, want=f"at most {MAX_VALUES} values", got="more")
    return parse_json(text, name)


def limit_of(name: str) -> int:
    """Return the largest size in bytes of a text file with this name."""
    return LIMITS.get(name, LONGEST_TEXT)


def new_manifest(step: int, metric: float | None, files: Mapping[str, FileDigest]) -> Manifest:
    """Return the manifest of a new checkpoint; a metric that is not finite is left out."""
    finite = metric if metric is not None and math.isfinite(metric) else None
    return Manifest(writer=f"heddle {VERSION}", step=step, metric=finite, files=dict(files))


def render(data: Mapping[str, JsonData]) -> str:
    """Return a manifest's data as text, with its checksum last."""
    body = {k: v for k, v in data.items() if k != "checksum"}
    checksum = hashlib.sha256(_dump(body).encode()).hexdigest()
    return _dump(body | {"checksum": checksum}) + "\n"


def _dump(data: Mapping[str, JsonData]) -> str:
    return json.dumps(data, indent=1, allow_nan=False)


def write_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `manifest.json`."""
    return render(encode(manifest)).encode()


def read_manifest(folder: Path) -> tuple[Manifest, int]:
    """Read and verify a manifest; return it in the current format, and the format it was written in."""
    path = folder / MANIFEST
    text = read_text_file(path, limit_of(MANIFEST))
    try:
        data = parse_json(text, "text")
        # Comparing the whole text, not only the checksum, also catches changed spaces and repeated keys.
        if not isinstance(data, dict) or render(data) != text:
            raise DamageError(f"{path}: checksum mismatch: the manifest was changed or damaged")
        data.pop("checksum")
        written = _check_format(path, data)
        for step in range(written, FORMAT):
            data = MIGRATIONS[step].manifest(data)
        return decode(Manifest, data | {"format": FORMAT}), written
    except (ConfigError, ValueError, RecursionError) as error:
        raise DamageError(f"{path}: {first_line(error)}") from None


def _check_format(path: Path, data: Mapping[str, JsonData]) -> int:
    found = data.get("format")
    if type(found) is not int:
        raise DamageError(f"{path}: want a format number, found {brief(found)}")
    if found > FORMAT:
        writer = brief(data.get("writer"))
        raise UsageError(f"{path}: written by {writer} in format {found}; this Heddle reads up to format {FORMAT}")
    if any(step not in MIGRATIONS for step in range(max(found, -1), FORMAT)):
        known = f"formats {min([FORMAT, *MIGRATIONS])} to {FORMAT}"
        raise UsageError(f"{path}: format {found} is no longer read; {known} are")
    return found


def read_text_file(path: Path, limit: int, digest: FileDigest | None = None) -> str:
    """Read a text file of bounded size; with a digest, the bytes that are returned are the ones that were verified."""
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise DamageError(f"{path}: {size} bytes, at most {limit} allowed")
        data = file.read(limit)
    if digest is not None:
        _compare(path, digest, len(data), hashlib.sha256(data).hexdigest)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamageError(f"{path}: not UTF-8 text: byte {data[error.start]:#04x} at {error.start}") from None


def check_weights(path: Path, digest: FileDigest) -> tuple[int, int, int]:
    """Verify a tensor file against its digest; return a stamp by which later changes are noticed."""
    check_tensors(path)
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        _compare(path, digest, size, lambda: hashlib.file_digest(file, "sha256").hexdigest())
        return file_stamp(file.fileno())


def file_stamp(file: int | Path) -> tuple[int, int, int]:
    """Return a file's inode, size and time of last change."""
    found = os.stat(file)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _compare(path: Path, digest: FileDigest, size: int, sha256: Callable[[], str]) -> None:
    if size != digest.bytes:
        raise DamageError(f"{path}: want {digest.bytes} bytes, found {size}")
    found = sha256()
    if found != digest.sha256:
        raise DamageError(f"{path}: want sha256 {digest.sha256[:16]}…, found {found[:16]}…")
