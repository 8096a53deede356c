"""Rows: plans that cut a corpus into rows, fixed by the data and a seed before training.

A plan turns any global row number into that row, so the number of rows consumed is the whole state of a data loader,
and neither workers nor ranks can change the order.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, DataError, check_at_least, part
from heddle.data.rows.batch import Row
from heddle.data.rows.shuffle import EpochCache, TokenStream, permutation, shuffled_order, stored_order
from heddle.data.shards import Shards

Boundaries = Literal["reset", "stream"]


class RowPlan(ABC):
    """Rows by number; row g belongs to epoch g // rows_per_epoch."""

    rows_per_epoch: int
    length: int  # of the longest row
    batch: int | None = None  # the only number of rows a step may take; None: any
    skipped: Mapping[str, int] = {}  # what found no row, by reason

    @property
    def mean_length(self) -> int:
        """Return how long a row is on the whole, for an estimate of its cost."""
        return self.length

    @abstractmethod
    def row(self, number: int) -> Row:
        """Return one row of the endless run; a pure function of the data, the config, the seed and the number."""


class RowsConfig(Config, ABC):
    """How a corpus is cut into rows."""

    @abstractmethod
    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        """Make the plan; `source` is the other side of a corpus of pairs, aligned by document number."""


def _refuse_small(shards: Shards, source: Shards | None, need: int, what: str) -> None:
    if source is not None:
        raise ConfigError("rows.kind", want="pairs, for a corpus with a source and a target side", got="another kind")
    if shards.tokens < need:
        raise DataError(
            f"{shards.folder}: want at least {need} tokens for {what}, found {shards.tokens}: "
            "give more text or shorter rows"
        )


def _document_ids(sizes: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number a row's documents and the places in each; what the sizes leave over is padding, one more document."""
    used = int(sizes.sum())
    if used < length:
        sizes = np.append(sizes, length - used)
    starts = np.cumsum(sizes) - sizes
    return np.repeat(np.arange(len(sizes)), sizes), np.arange(length) - np.repeat(starts, sizes)


def _row(
    stream: TokenStream, span: tuple[int, int], length: int, boundaries: Boundaries, fresh: bool | None = None
) -> Row:
    """Cut the pairs of a span out of a stream and pad them to the length."""
    start, stop = span
    count = stop - start
    tokens = np.empty(length + 1, stream.shards.dtype)
    tokens[count:] = stream.shards.end
    weights = np.zeros(length, np.float32)
    sizes = stream.take(start, stop, tokens[: count + 1], weights[:count]) if count else np.zeros(0, np.int64)
    inputs = with_begin_token(tokens, np.cumsum(sizes) - sizes, stream.shards)
    if boundaries == "stream":
        return Row(tokens, weights, fresh=fresh, inputs=inputs)
    documents, positions = _document_ids(sizes, length)
    return Row(tokens, weights, documents, positions, fresh, inputs=inputs)


def with_begin_token(tokens: NDArray[Any], starts: NDArray[np.int64], shards: Shards) -> NDArray[Any] | None:
    """Return what a model reads of a row whose documents open with an id of their own; None: all that is stored.

    What is stored before a document is the end of another. A piece that goes on with a document is left as it is.
    """
    if shards.begin == shards.end:
        return None
    inputs = tokens[:-1].copy()
    inputs[starts[inputs[starts] == shards.end]] = shards.begin
    return inputs


# --- packed -----------------------------------------------------------------------------------------------------------


@part("packed")
class PackedRows(RowsConfig):
    """Full rows for training: documents end to end in a new order each epoch, cut, and the cuts visited in a new order.

    boundaries: `reset` keeps the documents of a row apart, `stream` joins them.
    """

    length: int = 256
    boundaries: Boundaries = "reset"
    shuffle: bool = True

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        _refuse_small(shards, source, self.length, "one row")
        return PackedPlan(self, shards, seed)


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
        return _row(stream, span, self.length, self._config.boundaries)


def _packed_epoch(
    config: PackedRows, shards: Shards, seed: int, rows: int, epoch: int
) -> tuple[TokenStream, NDArray[np.int64]]:
    if not config.shuffle:
        return stored_order(shards), np.arange(rows)
    return shuffled_order(shards, seed, epoch, config.length), permutation(rows, seed, "rows", epoch)


# --- streams ----------------------------------------------------------------------------------------------------------


@part("streams")
class StreamRows(RowsConfig):
    """Continuous lanes for recurrent models that carry their state from step to step.

    The epoch's pairs are split into `lanes` contiguous lanes, equal to within one pair; row g continues lane g % lanes.
    boundaries: `stream` carries the state across documents, `reset` marks where it must be forgotten.
    """

    length: int = 64
    lanes: int = 32
    boundaries: Boundaries = "stream"
    shuffle: bool = False

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length, lanes=self.lanes)

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        _refuse_small(shards, source, self.length * self.lanes, f"one row in each of {self.lanes} lanes")
        return StreamPlan(self, shards, seed)


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
        parted = self._config.boundaries == "reset" and _resets_state(stream, start)
        return _row(stream, span, self.length, self._config.boundaries, fresh=chunk == 0 or parted)


def _resets_state(stream: TokenStream, start: int) -> bool:
    """Tell whether nothing before this pair may be remembered: in a conversation, not even the pair that leads in."""
    led = stream.shards.marks is not None and start > 0 and stream.starts_document(start - 1)
    return stream.starts_document(start) or led


def _stream_epoch(config: StreamRows, shards: Shards, seed: int, epoch: int) -> TokenStream:
    return shuffled_order(shards, seed, epoch, config.length) if config.shuffle else stored_order(shards)
