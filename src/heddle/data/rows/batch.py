"""Batch: what the data room hands out. One row is one line of a batch; a batch is rows stacked into tensors."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core.shapes import Bool, Ids, Int, Tensor, Weights


@dataclass(frozen=True)
class Row:
    """One row as arrays: `tokens` holds one more than the row is long, since targets are inputs moved by one."""

    tokens: NDArray[Any]
    weights: NDArray[np.float32]
    documents: NDArray[np.int64] | None = None
    positions: NDArray[np.int64] | None = None
    fresh: bool | None = None
    source: NDArray[Any] | None = None
    source_length: int | None = None
    inputs: NDArray[Any] | None = None  # None: the tokens but the last


@dataclass(frozen=True)
class Batch:
    """Rows to train or evaluate on.

    weights: 0 where a target does not count (padding, or context shown again).
    documents: number of the document within its row, padding having a number of its own; None: a row is one piece.
    positions: place within the document's part of the row; None: 0, 1, 2, ...
    rows: numbers of the rows in the whole run, the key of any randomness that belongs to a row.
    fresh: True where carried state must be forgotten before the row; None: nothing is carried.
    source, source_lengths: for sequence to sequence, the padded source ids and how many of them are real.
    """

    inputs: Ids
    targets: Ids
    weights: Weights
    rows: Int[Tensor, "batch"]
    documents: Ids | None = None
    positions: Ids | None = None
    fresh: Bool[Tensor, "batch"] | None = None
    source: Int[Tensor, "batch source_length"] | None = None
    source_lengths: Int[Tensor, "batch"] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def tokens(self) -> int:
        """Count the targets that count; ask before the batch leaves for a device, or it must be waited for."""
        return int(self.weights.count_nonzero())

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on a device; from pinned memory the copy runs beside the computation."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Self:
        """Return the batch in pinned memory, ready for copies that nobody waits for."""
        return self._each(lambda tensor: tensor.pin_memory())

    def slice(self, start: int, stop: int) -> Self:
        """Return some of the rows: a micro-batch."""
        return self._each(lambda tensor: tensor[start:stop])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{k: change(v) for k, v in values.items() if v is not None})


def collate(rows: Sequence[Row], numbers: Sequence[int]) -> Batch:
    """Stack rows of one shape into a batch."""
    tokens = torch.from_numpy(np.stack([row.tokens for row in rows]).astype(np.int64))
    inputs = np.stack([row.tokens[:-1] if row.inputs is None else row.inputs for row in rows])
    return Batch(
        inputs=torch.from_numpy(inputs.astype(np.int64)),
        targets=tokens[:, 1:].contiguous(),
        weights=torch.from_numpy(np.stack([row.weights for row in rows])),
        rows=torch.tensor(numbers, dtype=torch.int64),
        documents=_stack([row.documents for row in rows]),
        positions=_stack([row.positions for row in rows]),
        fresh=_stack([row.fresh for row in rows]),
        source=_stack([row.source for row in rows], np.int64),
        source_lengths=_stack([row.source_length for row in rows]),
    )


def _stack(values: Sequence[Any], dtype: Any = None) -> Tensor | None:
    if values[0] is None:
        return None
    return torch.from_numpy(np.array(values, dtype))
