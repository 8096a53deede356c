"""Length bucketing: pairs of source and target, batched with others of similar length to save padding."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError, Positive, Share, part, replace
from heddle.core.shapes import Tensor
from heddle.data.rows.loader import EpochCache, Row, RowPlan
from heddle.data.rows.packed import with_begin_token
from heddle.data.rows.plan import RowsConfig, permutation, random_bits, refuse_media
from heddle.data.shards import Shards


@part("pairs")
class PairRows(RowsConfig):
    """Batches of `batch` pairs of similar length; lengths include the end token, longer pairs are skipped and counted.

    length: most tokens of a target, its end included.
    source_length: most tokens of a source, its end included.
    batch: pairs in a batch; it must equal training.batch.
    jitter: share by which lengths are blurred before sorting, so that each epoch has other batches.
    multiple: padded lengths are rounded up to it, so that shapes are few; from the longest length on there is one.
    """

    length: Positive = 256
    source_length: Positive = 256
    batch: Positive = 32
    jitter: Share = 0.1
    multiple: Positive = 8

    batch_field: ClassVar[str | None] = "batch"
    paired: ClassVar[bool] = True

    @property
    def max_length(self) -> int:
        return max(self.length, self.source_length)

    @property
    def fixed_shape(self) -> bool:
        return self.multiple >= self.max_length

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        refuse_media(shards)
        if source is None:
            want = "pairs of source and target (a .tsv file, or parallel files), because rows.kind is pairs"
            raise ConfigError("data", want=want, got="text without targets")
        if source.loss_mask is not None:
            want = "preferences, because the corpus has preference pairs"
            raise ConfigError("rows.kind", want=want, got=self.kind)
        if source.count != shards.count:
            want = f"{shards.count} documents, one for each of {shards.folder}"
            raise DataError(f"{source.folder}: want {want}, found {source.count}")
        return PairPlan(self, shards, source, seed)

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return replace(self, jitter=0.0, batch=batch)

    def random_fields(self, vocab: int, rows: int, number: int, draw: torch.Generator) -> dict[str, Tensor]:
        source = torch.randint(vocab, (rows, self.source_length), generator=draw)
        lengths = torch.randint(self.source_length // 2, self.source_length, (rows,), generator=draw) + 1
        return {"source": source, "source_lengths": lengths}


@dataclass(frozen=True)
class _Epoch:
    """Which pair each row holds (-1: none, the last batch is filled up), and the padded lengths of each batch."""

    pairs: NDArray[np.int64]
    lengths: NDArray[np.int64]
    source_lengths: NDArray[np.int64]


class PairPlan(RowPlan):
    """Rows of source and target; each run of `batch` rows shares its padded lengths."""

    def __init__(self, config: PairRows, target: Shards, source: Shards, seed: int) -> None:
        self._target, self._source = target, source
        self.length, self.batch = config.length, config.batch
        long_source = source.lengths > config.source_length
        long_target = target.lengths > config.length
        kept = np.flatnonzero(~(long_source | long_target))
        too_long = {"source_too_long": long_source, "target_too_long": long_target & ~long_source}
        self.skipped = {name: int(rows.sum()) for name, rows in too_long.items()}
        if not len(kept):
            limits = f"{config.source_length} source and {config.length} target tokens"
            raise DataError(f"{target.folder}: want pairs of at most {limits}, found none among {target.count}")
        self.rows_per_epoch = -(-len(kept) // config.batch) * config.batch
        self._mean = max(1, round(float(target.lengths[kept].mean())))
        self._epoch = EpochCache(partial(_pair_epoch, config, (target, source), kept, seed))

    @property
    def mean_length(self) -> int:
        return self._mean

    def row(self, number: int) -> Row:
        epoch, index = divmod(number, self.rows_per_epoch)
        plan = self._epoch(epoch)
        pair, group = int(plan.pairs[index]), index // (self.batch or 1)
        length, source_length = int(plan.lengths[group]), int(plan.source_lengths[group])
        tokens = np.full(length + 1, self._target.end, self._target.dtype)
        source = np.full(source_length, self._source.end, self._source.dtype)
        weights = np.zeros(length, np.float32)
        if pair < 0:
            return Row(tokens, weights, source=source, source_length=1, inputs=self._opened(tokens))
        count, source_count = int(self._target.lengths[pair]), int(self._source.lengths[pair])
        self._target.fill(tokens[: count + 1], int(self._target.ends[pair]) - count)
        source[:source_count] = self._source.document(pair)
        weights[:count] = 1
        return Row(tokens, weights, source=source, source_length=source_count, inputs=self._opened(tokens))

    def _opened(self, tokens: NDArray[Any]) -> NDArray[Any] | None:
        return with_begin_token(tokens, (np.zeros(1, np.int64),), self._target)


def _pair_epoch(
    config: PairRows, sides: tuple[Shards, Shards], kept: NDArray[np.int64], seed: int, epoch: int
) -> _Epoch:
    """Sort the pairs by blurred lengths, group neighbours, and shuffle the groups."""
    lengths, source_lengths = (side.lengths[kept] for side in sides)
    blurred = [
        side * (1 + config.jitter * (2 * (random_bits(len(kept), seed, name, epoch) / 2.0**64) - 1))
        for name, side in (("target", lengths), ("source", source_lengths))
    ]
    order = np.lexsort((blurred[1], np.floor(blurred[0])))
    groups = shuffled_groups(order, config.batch, seed, epoch)
    return _Epoch(
        pairs=np.where(groups < 0, -1, kept[groups]).ravel(),
        lengths=padded_lengths(groups, lengths, config.multiple, config.length),
        source_lengths=padded_lengths(groups, source_lengths, config.multiple, config.source_length),
    )


def shuffled_groups(order: NDArray[np.int64], batch: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return neighbours in groups of a batch, the last filled up with -1, and the groups in a random order."""
    groups = np.append(order, np.full(-len(order) % batch, -1)).reshape(-1, batch)
    return groups[permutation(len(groups), seed, "groups", epoch)]


def padded_lengths(groups: NDArray[np.int64], sizes: NDArray[np.int64], multiple: int, most: int) -> NDArray[np.int64]:
    """Return the longest size of each group, rounded up to a multiple."""
    longest = np.where(groups < 0, 1, sizes[groups]).max(axis=1)
    rounded: NDArray[np.int64] = np.minimum(-(-longest // multiple) * multiple, most)
    return rounded
