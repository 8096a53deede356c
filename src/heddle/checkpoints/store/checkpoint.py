"""Checkpoint: a folder of tensors, state and texts, whose bytes are all verified against its manifest before use."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.checkpoints.store.manifest import (
    FORMAT,
    MIGRATIONS,
    STATE,
    WEIGHTS,
    check_weights,
    file_stamp,
    limit_of,
    parse_state,
    read_manifest,
    read_text_file,
)
from heddle.checkpoints.store.safetensors_io import open_tensors, read_tensors
from heddle.core import ConfigError, DamageError, UsageError, hint


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: state and texts are in memory, tensors are read on demand."""

    path: Path
    step: int
    metric: float | None
    state: Mapping[str, Any]
    texts: Mapping[str, str]
    file_stamps: Mapping[str, tuple[int, int, int]]  # group -> the tensor file when it was verified

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups of tensors."""
        return tuple(self.file_stamps)

    def tensors(self, group: str = "model", device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Read one group of tensors onto a device."""
        return read_tensors(self.weights(group), device)

    def names(self, group: str = "model") -> frozenset[str]:
        """Return the names of the tensors in one group."""
        with open_tensors(self.weights(group)) as file:
            return frozenset(file.keys())

    def weights(self, group: str = "model") -> Path:
        """Return the file of one group, which must not have changed since it was verified."""
        if group not in self.file_stamps:
            names = ", ".join(self.groups) or "none"
            raise UsageError(f"{self.path}: no tensors {group!r}, it holds {names}{hint(group, self.groups)}")
        path = self.path / f"{group}{WEIGHTS}"
        try:
            same = file_stamp(path) == self.file_stamps[group]
        except OSError as error:
            raise DamageError(f"{path}: gone since it was verified: {error.strerror}") from None
        if not same:
            raise DamageError(f"{path}: changed since it was verified")
        return path


def open_checkpoint(path: Path) -> Checkpoint:
    """Verify a whole checkpoint and open it."""
    manifest, written = read_manifest(path)
    texts, file_stamps = {}, {}
    for name, digest in sorted(manifest.files.items(), key=lambda item: item[1].bytes):  # small files first
        if name.endswith(WEIGHTS):
            file_stamps[name.removesuffix(WEIGHTS)] = check_weights(path / name, digest)
        else:
            texts[name] = read_text_file(path / name, limit_of(name), digest)
    state = _read_state(path / STATE, texts.pop(STATE), written)
    return Checkpoint(path, manifest.step, manifest.metric, state, texts, dict(sorted(file_stamps.items())))


def _read_state(path: Path, text: str, written: int) -> dict[str, Any]:
    try:
        state = parse_state(text, str(path))
    except ConfigError as error:
        raise DamageError(str(error)) from None
    for step in range(written, FORMAT):
        state = MIGRATIONS[step].state(state)
    if not isinstance(state, dict):
        raise DamageError(f"{path}: want an object, found a {type(state).__name__}")
    return state


def verify(path: Path) -> None:
    """Verify a checkpoint against its manifest; raise a DamageError that names the file and what is wrong."""
    open_checkpoint(path)


def average_checkpoints(checkpoints: Sequence[Checkpoint], group: str = "model") -> dict[str, Tensor]:
    """Average the weights of checkpoints (Vaswani et al. 2017, section 6.1), one tensor at a time, in float64.

    Integer tensors are taken from the last checkpoint.
    """
    if not checkpoints:
        raise UsageError("average: want at least one checkpoint, got none")
    with ExitStack() as stack:
        files = [stack.enter_context(open_tensors(c.weights(group))) for c in checkpoints]
        names = sorted(files[-1].keys())
        for file, checkpoint in zip(files, checkpoints, strict=True):
            odd = sorted(set(names) ^ set(file.keys()))
            if odd:
                raise UsageError(f"{checkpoint.path}: {odd[0]!r} is not in all of the checkpoints to average")
        return {name: _mean(files, name) for name in names}


def _mean(files: Sequence[Any], name: str) -> Tensor:
    last: Tensor = files[-1].get_tensor(name)
    if not last.is_floating_point():
        return last.clone()
    total = last.to(torch.float64, copy=True)
    for file in files[:-1]:
        tensor: Tensor = file.get_tensor(name)
        if tensor.shape != last.shape:
            raise UsageError(f"{name}: shapes differ: {tuple(tensor.shape)} and {tuple(last.shape)}")
        total += tensor.double()
    return (total / len(files)).to(last.dtype)
