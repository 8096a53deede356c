"""Media rows: the features of a sound, or of another medium, and the text that belongs to it, batched by length.

Features are computed when a row is read, and changed by augmentations that are keyed by the row's number in the run, so
that resumed, skipped and divided work changes nothing.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError, Positive, Share, part, replace
from heddle.core.shapes import Tensor
from heddle.data.media import AugmentationConfig, FeaturesConfig, LogMelConfig, augmented, augmented_length
from heddle.data.rows.loader import EpochCache, Row, RowPlan
from heddle.data.rows.packed import with_begin_token
from heddle.data.rows.pairs import padded_lengths, shuffled_groups
from heddle.data.rows.plan import RowsConfig, random_bits
from heddle.data.shards import MediaShards, Shards

Numbers = NDArray[np.int64]


@part("media")
class MediaRows(RowsConfig):
    """Batches of `batch` media of similar length with their texts; longer ones are skipped and counted.

    length: most tokens of a text, its end included.
    source_length: most frames of a source.
    batch: rows in a batch; it must equal training.batch.
    jitter: share by which lengths are blurred before sorting, so that each epoch has other batches.
    multiple: padded lengths of both sides are rounded up to it, so that shapes are few.
    features: what a model reads in each frame.
    augment: how features are changed in training, in order.
    """

    length: Positive = 256
    source_length: Positive = 1600
    batch: Positive = 32
    jitter: Share = 0.1
    multiple: Positive = 8
    features: FeaturesConfig = LogMelConfig()
    augment: tuple[AugmentationConfig, ...] = ()

    batch_field: ClassVar[str | None] = "batch"
    reads_media: ClassVar[bool] = True

    @property
    def most_frames(self) -> int:
        """Return the most frames of a row, augmented and padded."""
        longest = float(np.prod([one.longest for one in self.augment]))
        return -(-int(np.ceil(self.source_length * longest)) // self.multiple) * self.multiple

    @property
    def max_length(self) -> int:
        return max(self.length, self.most_frames) if self.features.over_time else self.length

    @property
    def source_shape(self) -> tuple[int, ...] | None:
        return self.features.shape

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        if shards.media is None:
            want = "sounds or other media with texts (a folder or a manifest), because rows.kind is media"
            raise ConfigError("data", want=want, got="text alone")
        try:
            self.features.check(shards.media.format)
            for index, one in enumerate(self.augment):
                one.check(index, self.features.shape)
            return MediaPlan(self, shards, shards.media, seed)
        except ConfigError as error:
            raise error.with_prefix("rows") from None

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return replace(self, jitter=0.0, batch=batch, augment=())

    def random_fields(self, vocab: int, rows: int, number: int, draw: torch.Generator) -> dict[str, Tensor]:
        if not self.features.over_time:
            return {"source": torch.randn(rows, *self.features.shape, generator=draw)}
        frames = self.most_frames
        source = torch.randn(rows, frames, *self.features.shape, generator=draw)
        return {"source": source, "source_lengths": torch.randint(frames // 2, frames, (rows,), generator=draw) + 1}


@dataclass(frozen=True)
class _Epoch:
    """Which document each row holds (-1: none, the last batch is filled up), and the padded texts of each batch."""

    documents: Numbers
    lengths: Numbers


class MediaSide:
    """The media of a corpus as rows read them: features, augmented by the row's number, padded alike in a batch."""

    def __init__(self, config: MediaRows, media: MediaShards, seed: int) -> None:
        self._config, self._media, self._seed = config, media, seed
        self.frames = np.array([config.features.count(shape) for shape in media.shapes], np.int64)
        self._padded = lru_cache(maxsize=64)(self._padded_frames)

    def source(self, chosen: int, number: int, group: tuple[Numbers, int]) -> tuple[NDArray[Any], int | None]:
        """Return the padded features of a document and how many frames of them are real; no document: one of zeros.

        `group` are the documents of the batch, and the number of its first row in the run.
        """
        config = self._config
        if not config.features.over_time:
            empty = np.zeros(config.features.shape, np.float32)
            return (empty if chosen < 0 else self._features(chosen, number)), None
        documents, first = group
        source = np.zeros((self._padded(tuple(documents.tolist()), first), *config.features.shape), np.float32)
        if chosen < 0:
            return source, 1
        found = self._features(chosen, number)
        source[: len(found)] = found
        return source, len(found)

    def _features(self, chosen: int, number: int) -> NDArray[np.float32]:
        features = self._config.features.compute(self._media.array(chosen))
        return augmented(self._config.augment, features, self._seed, number)

    def _padded_frames(self, documents: tuple[int, ...], first: int) -> int:
        """Return the padded frames of a batch: of its longest row, as augmentations will make it."""
        config = self._config
        rows = [(int(self.frames[d]), number) for number, d in enumerate(documents, first) if d >= 0]
        longest = max((augmented_length(config.augment, frames, self._seed, n) for frames, n in rows), default=1)
        return -(-longest // config.multiple) * config.multiple


class MediaPlan(RowPlan):
    """Rows of media and texts; each run of `batch` rows shares its padded lengths."""

    def __init__(self, config: MediaRows, texts: Shards, media: MediaShards, seed: int) -> None:
        self._config, self._texts, self._media = config, texts, MediaSide(config, media, seed)
        self.length, self.batch = config.length, config.batch
        frames = self._media.frames
        long_source, long_text = frames > config.source_length, texts.lengths > config.length
        kept = np.flatnonzero(~(long_source | long_text))
        too_long = {"source_too_long": long_source, "target_too_long": long_text & ~long_source}
        self.skipped = {name: int(rows.sum()) for name, rows in too_long.items()}
        if not len(kept):
            limits = f"{config.source_length} frames and {config.length} tokens"
            raise DataError(f"{texts.folder}: want media and texts of at most {limits}, found none among {texts.count}")
        self.rows_per_epoch = -(-len(kept) // config.batch) * config.batch
        self._mean = max(1, round(float(texts.lengths[kept].mean())))
        self._epoch = EpochCache(partial(_epoch, config, (frames, texts.lengths), kept, seed))

    @property
    def mean_length(self) -> int:
        return self._mean

    def row(self, number: int) -> Row:
        epoch, index = divmod(number, self.rows_per_epoch)
        plan, batch = self._epoch(epoch), self._config.batch
        chosen, group = int(plan.documents[index]), index // batch
        length = int(plan.lengths[group])
        tokens, weights = np.full(length + 1, self._texts.end, self._texts.dtype), np.zeros(length, np.float32)
        if chosen >= 0:
            count = int(self._texts.lengths[chosen])
            self._texts.fill(tokens[: count + 1], int(self._texts.ends[chosen]) - count)
            weights[:count] = 1
        documents = plan.documents[group * batch : (group + 1) * batch]
        source, frames = self._media.source(chosen, number, (documents, number - index % batch))
        inputs = with_begin_token(tokens, (np.zeros(1, np.int64),), self._texts)
        return Row(tokens, weights, source=source, source_length=frames, inputs=inputs)


def _epoch(config: MediaRows, sizes: tuple[Numbers, Numbers], kept: Numbers, seed: int, epoch: int) -> _Epoch:
    """Sort the documents by blurred lengths of source and text, group neighbours, and shuffle the groups."""
    frames, lengths = (side[kept] for side in sizes)
    noise = 2 * (random_bits(len(kept), seed, "media", epoch) / 2.0**64) - 1
    if config.features.over_time:
        order = np.lexsort((lengths, np.floor(frames * (1 + config.jitter * noise))))
    else:  # texts of one length in another order each time
        order = np.argsort(lengths + noise * (0.5 + config.jitter * lengths), kind="stable")
    groups = shuffled_groups(order, config.batch, seed, epoch)
    documents = np.where(groups < 0, -1, kept[groups]).ravel()
    return _Epoch(documents, padded_lengths(groups, lengths, config.multiple, config.length))
