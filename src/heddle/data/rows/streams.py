"""Streams for truncated BPTT: each row of a batch continues the row before it; recurrent models carry their state."""

from functools import partial
from typing import ClassVar, Self

import torch

from heddle.core import Positive, part, replace
from heddle.core.shapes import Tensor
from heddle.data.rows.loader import EpochCache, Row, RowPlan
from heddle.data.rows.packed import Boundaries, TokenStream, cut_row, shuffled_order, stored_order
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
        epoch, index = divmod(number, self.rows_per_epoch)
        chunk, lane = divmod(index, self._config.lanes)
        stream = self._epoch(epoch)
        begin, end = (self._tokens * edge // self._config.lanes for edge in (lane, lane + 1))
        start = min(begin + chunk * self.length, end)
        span = start, min(start + self.length, end)
        reset = self._config.boundaries == "reset" and _resets_state(stream, start)
        return cut_row(stream, span, self.length, self._config.boundaries, fresh=chunk == 0 or reset)


def _resets_state(stream: TokenStream, start: int) -> bool:
    """Tell whether state is reset before this pair: in a conversation, also after the pair that leads into it."""
    led = stream.shards.loss_mask is not None and start > 0 and stream.starts_document(start - 1)
    return stream.starts_document(start) or led


def _stream_epoch(config: StreamRows, shards: Shards, seed: int, epoch: int) -> TokenStream:
    return shuffled_order(shards, seed, epoch, config.length) if config.shuffle else stored_order(shards)
