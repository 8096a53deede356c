"""Sequence packing: documents end to end, cut into full rows, so that nothing but the last row is padded."""

from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import check_at_least, part, replace
from heddle.core.shapes import Tensor
from heddle.data.rows.batch import Row
from heddle.data.rows.plan import RowPlan, RowsConfig, check_corpus
from heddle.data.rows.shuffle import (
    Boundaries,
    EpochCache,
    TokenStream,
    cut_row,
    permutation,
    shuffled_order,
    stored_order,
)
from heddle.data.shards import Shards

DOCUMENT = 300  # tokens of a random document, about


@part("packed")
class PackedRows(RowsConfig):
    """Full rows for training: documents end to end in a new order each epoch, cut, and the cuts visited in a new order.

    boundaries: `reset` keeps the documents of a row apart, `stream` joins them.
    """

    length: int = 256
    boundaries: Boundaries = "reset"
    shuffle: bool = True

    mixable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)

    @property
    def max_length(self) -> int:
        return self.length

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        check_corpus(shards, source, self.length, "one row")
        return PackedPlan(self, shards, seed)

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return replace(self, shuffle=False, length=min(self.length, shards.tokens))

    def random_fields(self, vocab: int, rows: int, number: int, draw: torch.Generator) -> dict[str, Tensor]:
        if self.boundaries == "stream":
            return {}
        begins = torch.rand(rows, self.length, generator=draw) < 1 / DOCUMENT
        begins[:, 0] = True
        index = torch.arange(self.length).expand(rows, self.length)
        positions = index - index.where(begins, 0).cummax(dim=1).values
        return {"documents": begins.long().cumsum(1) - 1, "positions": positions}


class PackedPlan(RowPlan):
    """Packed rows; only the last cut of an epoch is padded."""

    def __init__(self, config: PackedRows, shards: Shards, seed: int) -> None:
        self._config, self._tokens = config, shards.tokens
        self.length = config.length
        self.rows_per_epoch = -(-shards.tokens // config.length)
        self._epoch = EpochCache(partial(_packed_epoch, config, shards, seed, self.rows_per_epoch))

    def row(self, number: int) -> Row:
        epoch, index = divmod(number, self.rows_per_epoch)
        stream, order = self._epoch(epoch)
        start = int(order[index]) * self.length
        span = start, min(start + self.length, self._tokens)
        return cut_row(stream, span, self.length, self._config.boundaries)


def _packed_epoch(
    config: PackedRows, shards: Shards, seed: int, rows: int, epoch: int
) -> tuple[TokenStream, NDArray[np.int64]]:
    if not config.shuffle:
        return stored_order(shards), np.arange(rows)
    return shuffled_order(shards, seed, epoch, config.length), permutation(rows, seed, "rows", epoch)
