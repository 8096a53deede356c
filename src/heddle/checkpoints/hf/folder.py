"""Hugging Face folder: config and weights, in one safetensors file or in several shards under an index."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from heddle.checkpoints.hf.weights import WeightSource
from heddle.checkpoints.store import FileDigest, TensorFile, check_weights, open_regular_file, serialize
from heddle.core import DamageError, UsageError, brief, decode, encode
from heddle.core.system import check_writable, parse_json, replacing, write_json

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CHECKSUMS = "checksums.json"  # Heddle's own: size and SHA-256 of each file of weights that it exports
GENERATION = "generation_config.json"
MAX_CONFIG_BYTES, LARGEST_INDEX = 4 << 20, 64 << 20  # bytes
MAX_FILES = 512  # all stay open while a model is loaded
CHANGED = f"if it was changed on purpose, remove {CHECKSUMS}"
SHARD = 5 << 30  # bytes of weights in one file, as in transformers


def is_hf_folder(path: Path) -> bool:
    """Tell whether a folder is a Hugging Face model: it has a config with a `model_type`."""
    try:
        return isinstance(read_config(path).get("model_type"), str)
    except (UsageError, DamageError, OSError):
        return False


def read_config(path: Path) -> dict[str, Any]:
    """Return the config of a folder."""
    return _table(path / CONFIG)


def read_generation(path: Path) -> dict[str, Any]:
    """Return the generation config of a folder; an empty one where it has none."""
    return _table(path / GENERATION) if (path / GENERATION).is_file() else {}


def _table(path: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    with open_regular_file(resolve_hub_link(path)) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise UsageError(f"{path}: larger than {most} bytes, too large for a file of this kind")
    try:
        found = parse_json(raw.decode(), str(path))
    except UnicodeDecodeError:
        raise DamageError(f"{path}: want UTF-8") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: want an object, found a {type(found).__name__}")
    return found


def refuse_nonempty(path: Path) -> None:
    """Refuse to write to a folder that is not empty, over a file, or where writing is not allowed."""
    check_writable(path)
    if path.is_dir() and path.samefile("."):
        raise UsageError(f"{path}: is the current folder; want a new or an empty one")
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UsageError(f"{path}: exists already; want a new or an empty folder")


def resolve_hub_link(path: Path) -> Path:
    """Return the file behind a link in the hub's cache; other links are returned, and refused by every reader.

    In the cache, `models--NAME/snapshots/COMMIT/FILE` is a link to `models--NAME/blobs/HASH`.
    """
    if path.is_symlink() and path.parent.parent.name == "snapshots":
        blobs, target = path.parent.parent.parent / "blobs", path.parent / path.readlink()
        if target.parent.resolve() == blobs.resolve():
            return blobs / target.name
    return path


@final
class SafetensorsFolder(WeightSource):
    """The tensors of a folder's safetensors files, each read when needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = _places(path)
        self._files = {name: TensorFile(resolve_hub_link(path / name)) for name in sorted(set(self._place.values()))}
        _verify(path, self._files)
        for tensor, file in self._place.items():
            if tensor not in self._files[file]:
                raise DamageError(
                    f"{path / file}: the index lists tensor {brief(tensor)}, but the file does not contain it"
                )

    @property
    def where(self) -> str:
        return str(self._path)

    def shape(self, name: str) -> torch.Size:
        return self._file(name)[name].shape

    def read_into(self, name: str, into: Tensor) -> None:
        self._file(name).read_into(name, into)

    def __getitem__(self, name: str) -> Tensor:
        return self._file(name).read(name)

    def _file(self, name: str) -> TensorFile:
        if name not in self._place:
            raise DamageError(f"{self._path}: tensor {brief(name)} is missing")
        return self._files[self._place[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._place

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


def _places(path: Path) -> dict[str, str]:
    """Return the file of each tensor."""
    if (path / INDEX).is_file():
        return read_index(path / INDEX, ".safetensors")
    if (path / SINGLE).is_file():
        return dict.fromkeys(TensorFile(resolve_hub_link(path / SINGLE)), SINGLE)
    if any(path.glob("*.bin")):
        fault = "its weights are pickled, and a pickle can run code"
        raise UsageError(f"{path}: {fault}; type: heddle convert --unpickle {path} OUT")
    raise UsageError(f"{path}: want {SINGLE}, found none")


def _verify(path: Path, files: Iterable[str]) -> None:
    """Compare weight files with their checksums, where the folder has any."""
    if not (path / CHECKSUMS).exists():
        return
    found = _table(path / CHECKSUMS)
    for name in files:
        if name not in found:
            raise DamageError(f"{path / name}: not in {CHECKSUMS}; {CHANGED}")
        try:
            digest = decode(FileDigest, found[name], f"{path / CHECKSUMS}: {name}")
            check_weights(resolve_hub_link(path / name), digest)
        except DamageError as error:
            raise DamageError(f"{error}; {CHANGED}") from None


def read_index(path: Path, ending: str) -> dict[str, str]:
    """Return the file of each tensor from an index; all must be in this folder."""
    places = _table(path, LARGEST_INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise DamageError(f"{path}: want an object weight_map of tensors and files")
    if len(set(places.values())) > MAX_FILES:
        raise UsageError(f"{path}: {len(set(places.values()))} files, at most {MAX_FILES} allowed")
    for name in set(places.values()):
        if Path(name).name != name or not name.endswith(ending) or not name.isprintable():
            raise DamageError(f"{path}: want {ending} files of this folder, found {brief(name)}")
    return dict(places)


def write_folder(path: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], shard: int = SHARD) -> None:
    """Write a config and weights; a weight that is larger than a shard gets a shard of its own."""
    path.mkdir(parents=True, exist_ok=True)
    groups = _shards(weights, shard)
    names = [SINGLE] if len(groups) == 1 else [
        f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1)
    ]  # fmt: skip
    digests = {
        name: write_file(path / name, serialize({key: weights[key] for key in group}, name))
        for name, group in zip(names, groups, strict=True)
    }
    write_json(path / CHECKSUMS, {name: encode(digest) for name, digest in digests.items()})
    if len(groups) > 1:
        total = sum(tensor.numel() * tensor.itemsize for tensor in weights.values())
        places = {key: name for name, group in zip(names, groups, strict=True) for key in group}
        write_json(path / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    write_json(path / CONFIG, dict(config))


def _shards(weights: Mapping[str, Tensor], most: int) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in weights.items():
        more = tensor.numel() * tensor.itemsize
        if groups[-1] and size + more > most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += more
    return groups


def write_file(path: Path, chunks: Iterable[memoryview]) -> FileDigest:
    """Write a file atomically: a crash leaves either the old or the new one; return its size and checksum."""
    digest, size = hashlib.sha256(), 0
    with replacing(path) as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
    return FileDigest(bytes=size, sha256=digest.hexdigest())
