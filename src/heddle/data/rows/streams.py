"""Streams for truncated BPTT: each row of a batch continues the row before it; recurrent models carry their state."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import Positive, part, replace
from heddle.core.shapes import Tensor
from heddle.data.rows.loader import Batch, EpochCache, Row, RowPlan, joined
from heddle.data.rows.packed import Boundaries, PackedArrays, TokenStream, cut_rows, shuffled_order, stored_order
from heddle.data.rows.plan import RowsConfig, check_corpus
from heddle.data.shards import Shards


@part("streams")
class StreamRows(RowsConfig):
    """Continuous lanes for truncated BPTT: recurrent models carry their state from step to step.

    The epoch's pairs are split into `lanes` contiguous lanes, equal to within one pair; row g continues lane g % lanes.

    length: tokens of each lane in one step: how far back truncated BPTT reaches.
    lanes: streams read side by side; it must equal training.batch.
    boundaries: `stream` carries the state across documents, `reset` marks where it is reset.
    shuffle: whether documents come in a new order each epoch.
    """

    length: Positive = 64
    lanes: Positive = 32
    boundaries: Boundaries = "stream"
    shuffle: bool = False

    batch_field: ClassVar[str | None] = "lanes"
    carries_state: ClassVar[bool] = True

    @property
    def separates_documents(self) -> bool:
        return self.boundaries == "reset"

    @property
    def fixed_shape(self) -> bool:
        return True

    @property
    def max_length(self) -> int:
        return self.length

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        check_corpus(shards, source, self.length * self.lanes, f"one row in each of {self.lanes} lanes")
        return StreamPlan(self, shards, seed)

    def for_validation(self, shards: Shards, batch: int) -> Self:
        lanes = max(1, min(self.lanes, shards.tokens // self.length))
        return replace(self, shuffle=False, lanes=lanes, length=min(self.length, shards.tokens))

    def random_fields(self, vocab: int, rows: int, number: int, draw: torch.Generator) -> dict[str, Tensor]:
        return {"fresh": torch.full((rows,), number == 0)}


class StreamPlan(RowPlan):
    """Lanes over an epoch's stream; only a lane's last chunk is padded."""

    def __init__(self, config: StreamRows, shards: Shards, seed: int) -> None:
        self._config, self._tokens = config, shards.tokens
        self.length, self.batch = config.length, config.lanes
        longest = -(-shards.tokens // config.lanes)
        self.rows_per_epoch = -(-longest // config.length) * config.lanes
        self._epoch = EpochCache(partial(_stream_epoch, config, shards, seed))

    def row(self, number: int) -> Row:
        return self._cut(*divmod(np.array([number]), self.rows_per_epoch)).row()

    def build_batch(self, numbers: Sequence[int]) -> Batch:
        every = np.asarray(numbers, np.int64)
        epochs, index = np.divmod(every, self.rows_per_epoch)
        return joined(epochs, lambda some: self._cut(epochs[some], index[some]).batch(every[some]))

    def _cut(self, epochs: NDArray[np.int64], index: NDArray[np.int64]) -> PackedArrays:
        """Cut some rows of one epoch."""
        chunk, lane = np.divmod(index, self._config.lanes)
        stream = self._epoch(int(epochs[0]))
        begin, end = (self._tokens * edge // self._config.lanes for edge in (lane, lane + 1))
        start = np.minimum(begin + chunk * self.length, end)
        spans = start, np.minimum(start + self.length, end)
        fresh = chunk == 0
        if self._config.boundaries == "reset":
            fresh |= _resets_state(stream, start)
        return cut_rows(stream, spans, self.length, self._config.boundaries, fresh)


def _resets_state(stream: TokenStream, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell whether state is reset before these pairs: in a conversation, also after the pair that leads into it."""
    found = stream.starts_document(starts)
    if stream.shards.loss_mask is None:
        return found
    return found | ((starts > 0) & stream.starts_document(np.maximum(starts - 1, 0)))


def _stream_epoch(config: StreamRows, shards: Shards, seed: int, epoch: int) -> TokenStream:
    return shuffled_order(shards, seed, epoch, config.length) if config.shuffle else stored_order(shards)
