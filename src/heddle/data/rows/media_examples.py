"""Media examples: images, sounds or videos with labels, one in a row, for encoders that recognize them."""

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError, DataError, Positive, Share, part, replace
from heddle.data.media import AugmentationConfig, FeaturesConfig, PixelsConfig
from heddle.data.rows.examples import ExampleBatch, ExampleRow
from heddle.data.rows.loader import Batch, EpochCache, Row, RowPlan
from heddle.data.rows.media import MediaRows, MediaSide
from heddle.data.rows.pairs import shuffled_groups
from heddle.data.rows.plan import RowsConfig, random_bits
from heddle.data.shards import ExampleShards, MediaShards, Shards, TextWindow

Numbers = NDArray[np.int64]
NO_WINDOW = TextWindow(0, 0, 0, 0)


@part("media_examples")
class MediaExampleRows(RowsConfig):
    """Labelled images, sounds or videos: each row is one; those that go over time are batched by length and padded.

    source_length: most frames of a source; longer ones are skipped and counted.
    batch: rows in a batch; it must equal training.batch.
    jitter: share by which lengths are blurred before sorting, so that each epoch has other batches.
    multiple: padded lengths are rounded up to it, so that shapes are few.
    features: what a model reads.
    augment: how features are changed in training, in order.
    """

    source_length: Positive = 1600
    batch: Positive = 32
    jitter: Share = 0.1
    multiple: Positive = 8
    features: FeaturesConfig = PixelsConfig()
    augment: tuple[AugmentationConfig, ...] = ()

    batch_field: ClassVar[str | None] = "batch"
    labelled: ClassVar[bool] = True
    reads_media: ClassVar[bool] = True

    @property
    def media_rows(self) -> MediaRows:
        """Return rows of the same media, with texts in place of labels."""
        return MediaRows(
            length=1,
            source_length=self.source_length,
            batch=self.batch,
            jitter=self.jitter,
            multiple=self.multiple,
            features=self.features,
            augment=self.augment,
        )

    @property
    def max_length(self) -> int:
        return self.media_rows.max_length

    @property
    def source_shape(self) -> tuple[int, ...] | None:
        return self.features.shape

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        if shards.media is None or shards.examples is None:
            found = "text" if shards.media is None else f"{shards.media.format.medium}s with texts"
            raise ConfigError("data", want="images or other media with classes, because of rows.kind", got=found)
        try:
            self.features.check(shards.media.format)
            for index, one in enumerate(self.augment):
                one.check(index, self.features.shape)
            return MediaExamplePlan(self, shards.media, shards.examples, seed)
        except ConfigError as error:
            raise error.with_prefix("rows") from None

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return replace(self, jitter=0.0, batch=batch, augment=())

    def random_batch(self, vocab: int, rows: int, number: int) -> Batch:
        draw, places = torch.Generator().manual_seed(number), torch.arange(rows)
        zero, one = torch.zeros(rows, 1, dtype=torch.int64), torch.ones(rows, 1)
        more: dict[str, Any] = self.media_rows.random_fields(vocab, rows, number, draw)
        return ExampleBatch(zero, zero, one, places, lengths=torch.ones_like(places), examples=places, **more)


class MediaExamplePlan(RowPlan):
    """Rows of media with labels; each run of `batch` rows shares its padded length."""

    def __init__(self, config: MediaExampleRows, media: MediaShards, examples: ExampleShards, seed: int) -> None:
        self._examples, self._media = examples, MediaSide(config.media_rows, media, seed)
        frames = self._media.frames
        kept = np.flatnonzero(frames <= config.source_length)
        self.length, self.batch = config.max_length, config.batch
        self.skipped = {"source_too_long": len(frames) - len(kept)}
        if not len(kept):
            raise DataError(f"{media.folder}: want media of at most {config.source_length} frames, found none")
        self.rows_per_epoch = -(-len(kept) // config.batch) * config.batch
        self._mean = max(1, round(float(frames[kept].mean())))
        self._epoch = EpochCache(partial(_epoch, config, frames[kept], kept, seed))

    @property
    def mean_length(self) -> int:
        return self._mean

    def row(self, number: int) -> Row:
        epoch, index = divmod(number, self.rows_per_epoch)
        documents = self._epoch(epoch)
        chosen, first = int(documents[index]), number - index % (self.batch or 1)
        group = documents[first - epoch * self.rows_per_epoch :][: self.batch]
        source, frames = self._media.source(chosen, number, (group, first))
        labels = self._examples.labels.document(max(0, chosen))[:-1]
        found = self._examples.label_set.row(labels, NO_WINDOW, 1)
        return ExampleRow(
            tokens=np.zeros(2, np.int64),
            weights=found.weights if chosen >= 0 else 0 * found.weights,
            source=source,
            source_length=frames,
            length=1,
            targets=found.targets,
            segments=np.zeros(1, np.int64),
            labels=found.labels if chosen >= 0 else 0 * found.labels,
            example=chosen,
        )


def _epoch(config: MediaExampleRows, frames: Numbers, kept: Numbers, seed: int, epoch: int) -> Numbers:
    """Return which document each row holds (-1: none), sorted by blurred lengths in groups that are shuffled."""
    noise = 2 * (random_bits(len(kept), seed, "media examples", epoch) / 2.0**64) - 1
    blurred = np.floor(frames * (1 + config.jitter * noise))
    order = np.lexsort((random_bits(len(kept), seed, "media order", epoch), blurred))
    groups = shuffled_groups(order, config.batch, seed, epoch)
    return np.where(groups < 0, -1, kept[groups]).ravel()
