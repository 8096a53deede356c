"""One checkpoint: a folder whose every byte was compared with its manifest before anything in it is used."""

from collections.abc import Mapping
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
from heddle.checkpoints.store.safetensors_io import read_tensors
from heddle.core import ConfigError, DamageError, UsageError, hint


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its small parts in memory, its tensors read on demand."""

    path: Path
    step: int
    metric: float | None
    state: Mapping[str, Any]
    texts: Mapping[str, str]
    file_stamps: Mapping[str, tuple[int, int, int]]  # group -> the tensor file as it was when verified

    @property
    def groups(self) -> tuple[str, ...]:
        """Name the groups of tensors."""
        return tuple(self.file_stamps)

    def tensors(self, group: str = "model", device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Read one group of tensors onto a device."""
        return read_tensors(self.weights(group), device)

    def weights(self, group: str = "model") -> Path:
        """Return the file of one group, sure that it is still the one that was verified."""
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
    """Verify a checkpoint in full and open it."""
    manifest, written = read_manifest(path)
    texts, file_stamps = {}, {}
    for name, digest in sorted(manifest.files.items(), key=lambda item: item[1].bytes):  # quick refusals first
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
        raise DamageError(f"{path}: want a table, found a {type(state).__name__}")
    return state


def verify(path: Path) -> None:
    """Compare every byte of a checkpoint with its manifest; raise DamageError that names the file and the fault."""
    open_checkpoint(path)
