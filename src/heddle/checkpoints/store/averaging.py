"""Averaging: the mean of several checkpoints' weights (Vaswani et al. 2017, section 6.1), one tensor at a time."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from heddle.checkpoints.store.checkpoint import Checkpoint
from heddle.checkpoints.store.safetensors_io import open_tensors
from heddle.core import UsageError


def average_checkpoints(checkpoints: Sequence[Checkpoint], group: str = "model") -> dict[str, Tensor]:
    """Return the mean of each tensor over checkpoints, summed in float64; whole numbers come from the last one."""
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
