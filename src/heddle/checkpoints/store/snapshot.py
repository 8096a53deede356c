"""Snapshot: what a checkpoint saves, checked and frozen before a byte is written."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heddle.checkpoints.store.manifest import MANIFEST, STATE, TEXT_SUFFIXES, WEIGHTS, check_name, limit_of, parse_state
from heddle.checkpoints.store.safetensors_io import check_writable, serialize
from heddle.core import ConfigError, brief


@dataclass(frozen=True)
class Snapshot:
    """What to save: tensors by group and name on any device, state as JSON data, small texts by file name."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)
    metric: float | None = None


@dataclass(frozen=True)
class FrozenSnapshot:
    """A snapshot whose content has been checked: only writing it can still fail."""

    step: int
    metric: float | None
    tensors: Mapping[str, Mapping[str, Tensor]]
    words: Mapping[str, bytes]

    def files(self) -> Iterator[tuple[str, Iterator[memoryview]]]:
        """Yield the name and the bytes of each file."""
        for group, tensors in self.tensors.items():
            yield f"{group}{WEIGHTS}", serialize(tensors, f"tensors.{group}")
        for name, data in self.words.items():
            yield name, iter([memoryview(data)])


def freeze(snapshot: Snapshot, copy: bool) -> FrozenSnapshot:
    """Check a snapshot; with `copy`, copy its tensors, so that training may continue during the save."""
    if type(snapshot.step) is not int or snapshot.step < 0:
        raise ConfigError("step", want="a whole number, 0 or more", got=snapshot.step)
    for group, tensors in snapshot.tensors.items():
        check_name(f"{group}{WEIGHTS}", "tensors")
        check_writable(tensors, f"tensors.{group}")
    words = {STATE: _state_bytes(snapshot.state)} | {n: _text_bytes(n, t) for n, t in snapshot.texts.items()}
    held = {group: _copied(t) if copy else dict(t) for group, t in snapshot.tensors.items()}
    return FrozenSnapshot(snapshot.step, snapshot.metric, held, words)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _state_bytes(state: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(state, allow_nan=False, ensure_ascii=False)
        data = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError("state", want="plain JSON data", got=str(error)) from None
    changed = _first_change(state, parse_state(text, "state"), "state")
    if changed is not None:
        raise ConfigError(changed[0], want="plain JSON data that reads back equal", got=changed[1])
    return _bounded(STATE, data)


def _first_change(before: object, after: object, path: str) -> tuple[str, str] | None:
    """Find a value that JSON would change, such as a tuple or a key that is not a string."""
    if isinstance(before, Mapping) and isinstance(after, dict):
        for key, value in before.items():
            if not isinstance(key, str):
                return path, f"the key {brief(key)}"
            found = _first_change(value, after[key], f"{path}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(after, list):
        pairs = enumerate(zip(before, after, strict=True))
        return next((f for i, (b, a) in pairs if (f := _first_change(b, a, f"{path}.{i}")) is not None), None)
    return None if before == after else (path, f"a {type(before).__name__}")


def _text_bytes(name: str, text: str) -> bytes:
    check_name(name, "texts")
    if name in (MANIFEST, STATE) or not name.endswith(TEXT_SUFFIXES):
        raise ConfigError(f"texts.{name}", want=f"a name of its own that ends in {', '.join(TEXT_SUFFIXES)}", got=name)
    try:
        return _bounded(name, text.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"texts.{name}", want="text that UTF-8 can hold", got=str(error)) from None


def _bounded(name: str, data: bytes) -> bytes:
    if len(data) > limit_of(name):
        raise ConfigError(name, want=f"at most {limit_of(name)} bytes", got=len(data))
    return data
