"""The folder: a Hugging Face model on disk, in one safetensors file or several under an index, read and written."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from heddle.checkpoints.tensors import get_tensor, open_tensors, serialize
from heddle.core import DamageError, UsageError, parse_json, read_text, write_json

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LARGEST_CONFIG, LARGEST_INDEX = 4 << 20, 64 << 20  # bytes
SHARD = 5 << 30  # bytes of weights in one file, as they do


def is_folder(path: Path) -> bool:
    """Tell whether a folder holds a model of theirs: a config that names its type."""
    try:
        return isinstance(read_config(path).get("model_type"), str)
    except (UsageError, DamageError, OSError):
        return False


def read_config(path: Path) -> dict[str, Any]:
    """Return the config of a folder."""
    where = path / CONFIG
    found = parse_json(read_text(where, LARGEST_CONFIG), str(where))
    if not isinstance(found, dict):
        raise UsageError(f"{where}: want a table, found a {type(found).__name__}")
    return found


class Weights(Mapping[str, Tensor]):
    """The tensors of a folder, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = _places(path)
        self._files = {name: open_tensors(path / name) for name in sorted(set(self._place.values()))}
        for tensor, file in self._place.items():
            if tensor not in self._files[file].keys():  # noqa: SIM118 - not a mapping
                raise DamageError(f"{path / file}: the index promises tensor {tensor}, which is not there")

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._place:
            raise DamageError(f"{self._path}: tensor {name} is missing")
        file = self._place[name]
        return get_tensor(self._files[file], name, self._path / file)

    def __contains__(self, name: object) -> bool:
        return name in self._place

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


def _places(path: Path) -> dict[str, str]:
    """Return in which file each tensor lies."""
    if (path / INDEX).is_file():
        found = parse_json(read_text(path / INDEX, LARGEST_INDEX), str(path / INDEX))
        places = found.get("weight_map") if isinstance(found, dict) else None
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise DamageError(f"{path / INDEX}: want a table weight_map of tensors and files")
        for name in set(places.values()):
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise DamageError(f"{path / INDEX}: want safetensors files of this folder, found {name!r}")
        return dict(places)
    if (path / SINGLE).is_file():
        return dict.fromkeys(open_tensors(path / SINGLE).keys(), SINGLE)
    if any(path.glob("*.bin")):
        raise UsageError(f"{path}: its weights are pickled, which can run code; type: heddle convert --unpickle {path}")
    raise UsageError(f"{path}: want {SINGLE}, found none")


def write_folder(path: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], shard: int = SHARD) -> None:
    """Write a config and weights as they lay them out; a weight that is larger than a shard has one of its own."""
    path.mkdir(parents=True, exist_ok=True)
    groups = _shards(weights, shard)
    names = [SINGLE] if len(groups) == 1 else [
        f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1)
    ]  # fmt: skip
    for name, group in zip(names, groups, strict=True):
        _write(path / name, serialize({key: weights[key] for key in group}, name))
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


def _write(path: Path, chunks: Iterable[memoryview]) -> None:
    """Write a file so that a crash leaves either the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
