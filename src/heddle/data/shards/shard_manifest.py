"""The manifest of a shard folder: identity, counts, and the size and checksum of every file and of itself."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from heddle.core import Config, ConfigError, DamageError, DataError, EnvironmentFault, decode, first_line, settings
from heddle.core.system import parse_json

FORMAT = 1
LARGEST_MANIFEST = 64 << 20
BLOCK = 1 << 22  # bytes of a token file held at a time while writing and verifying
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
MANIFEST = "manifest.json"
LOSS_MASK = "written"  # the folder inside, with shards of its own: 1 for each token that has a loss


@settings
class ShardFile(Config):
    """One file of a shard folder, as it was written."""

    name: str
    size: int
    sha256: str


@settings
class ShardManifest(Config):
    """What a shard folder holds: identity, counts and files (tokens and ends of each shard in turn)."""

    format: int
    dtype: str
    vocab: int
    end: int
    fingerprint: str
    documents: int
    tokens: int
    bytes: int
    words: int
    files: tuple[ShardFile, ...]
    begin: int | None = None  # the id that opens a document to a model that reads it; None: the end of the one before
    counted: int | None = None  # tokens that have a loss, where there is a LOSS_MASK; None: all of them
    lost: int = 0  # bytes of the text that unknown tokens stand for


def file_names(shard: int) -> tuple[str, str]:
    """Return the names of the token file and the index file of a shard."""
    return f"tokens-{shard:05d}.bin", f"ends-{shard:05d}.bin"


def manifest_text(plain: dict[str, Any]) -> str:
    """Write a manifest with its own checksum; the form is canonical, so any changed byte shows."""
    body = json.dumps(plain, indent=1, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps(plain | {"checksum": digest}, indent=1, sort_keys=True) + "\n"


@contextlib.contextmanager
def disk_faults(path: Path, verb: str) -> Iterator[None]:
    """Turn an OSError into one line that names the path."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot be {verb}: {error.strerror or error}") from None


def read_manifest(folder: Path) -> ShardManifest:
    """Read the manifest of a folder; anything that was not written so is refused."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise DamageError(f"{path}: larger than {LARGEST_MANIFEST} bytes")
        text = path.read_bytes().decode()
        plain = parse_json(text, str(path))
        if not isinstance(plain, dict) or manifest_text({k: plain[k] for k in plain if k != "checksum"}) != text:
            raise DamageError(f"{path}: checksum mismatch: the manifest was changed or damaged")
        if plain.get("format") != FORMAT:
            raise DamageError(f"{path}: want format {FORMAT}, found {plain.get('format')!r}: prepare the data again")
        return _checked(path, decode(ShardManifest, {k: v for k, v in plain.items() if k != "checksum"}))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder}: want a folder of token shards, found no {MANIFEST}") from None
    except (UnicodeDecodeError, ConfigError) as error:
        raise DamageError(f"{path}: the manifest is damaged: {first_line(error)}") from None
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot be read: {error.strerror or error}") from None


def _checked(path: Path, manifest: ShardManifest) -> ShardManifest:
    known = all(0 <= id < manifest.vocab for id in (manifest.end, manifest.begin or 0))
    if manifest.dtype not in DTYPES or not known or manifest.vocab > 1 << 32:
        raise DamageError(f"{path}: dtype {manifest.dtype}, vocab {manifest.vocab}, end {manifest.end} do not fit")
    wanted = [name for shard in range((len(manifest.files) + 1) // 2) for name in file_names(shard)]
    if [file.name for file in manifest.files] != wanted:
        raise DamageError(f"{path}: want the files {', '.join(wanted)[:120]}, found another list")
    return manifest
