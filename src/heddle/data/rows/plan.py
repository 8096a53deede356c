"""Row plans: how a corpus is cut into rows, fixed by the data and a seed before training.

A plan turns any global row number into that row, so the number of rows consumed is the whole state of a data loader,
and neither workers nor ranks can change the order. A new kind of rows is one file: a `RowsConfig` that says what its
rows need, and the `RowPlan` that it builds.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, DataError, Purpose, fields_of, numpy_generator
from heddle.core.shapes import Tensor
from heddle.data.rows.loader import Batch, RowPlan
from heddle.data.shards import Shards


class RowsConfig(Config, ABC):
    """How a corpus is cut into rows, and what its rows need of the model and the run.

    batch_field: the field that must equal `training.batch` and follows it on the command line; None: none does.
    paired: a row has a source and a target, for an encoder-decoder.
    carries_state: a row continues one of the batch before, for recurrent models (truncated BPTT).
    mixable: rows of several corpora may be mixed by weight.
    compares_answers: a row has two answers to one prompt, one of them preferred.
    labelled: a row is one example with its label, for objectives that recognize something.
    reads_media: the source of a row is a sound or the like.
    """

    batch_field: ClassVar[str | None] = None
    paired: ClassVar[bool] = False
    carries_state: ClassVar[bool] = False
    mixable: ClassVar[bool] = False
    compares_answers: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    reads_media: ClassVar[bool] = False

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Return how long a row is at most, of pairs the longer side."""

    @abstractmethod
    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        """Build the plan; `source` is the other side of a corpus of pairs, aligned by document number."""

    @abstractmethod
    def for_validation(self, shards: Shards, batch: int) -> Self:
        """Return the rows that are held out: each target once, in an order without randomness."""

    @property
    def required_batch(self) -> int | None:
        """Return the only number of rows that a step may take; None: any."""
        return None if self.batch_field is None else int(fields_of(self)[self.batch_field])

    @property
    def separates_documents(self) -> bool:
        """Tell whether the documents of a row are kept apart, so that none sees another."""
        return False

    @property
    def second_text(self) -> str | None:
        """Return what the second text of a row is where it does not follow the first; None: a row is one text."""
        return None

    @property
    def source_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one frame of the source, or of a whole image; None: the rows have no media."""
        return None

    @property
    def repeats_rows(self) -> bool:
        """Tell whether every epoch has the same rows, in whatever order."""
        return False

    @property
    def fixed_shape(self) -> bool:
        """Promise that all batches of a run have one shape, so that a step can be compiled for it and replayed."""
        return False

    def random_batch(self, vocab: int, rows: int, number: int) -> Batch:
        """Return random tokens in the shape of a batch, to time a step without data."""
        draw, length = torch.Generator().manual_seed(number), self.max_length
        tokens = torch.randint(vocab, (rows, length + 1), generator=draw)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        more = self.random_fields(vocab, rows, number, draw)
        return Batch(inputs, targets, torch.ones(rows, length), torch.arange(rows), **more)

    def random_fields(self, vocab: int, rows: int, number: int, draw: torch.Generator) -> dict[str, Tensor]:
        """Return what a batch of these rows has beside tokens and weights."""
        return {}


def check_corpus(shards: Shards, source: Shards | None, need: int, what: str) -> None:
    """Refuse a corpus of pairs or of media, or one that is too small for these rows."""
    refuse_media(shards)
    if source is not None and source.loss_mask is not None:
        raise ConfigError("rows.kind", want="preferences, because the corpus has preference pairs", got="another kind")
    if source is not None:
        raise ConfigError("rows.kind", want="pairs, because the corpus has source and target", got="another kind")
    if shards.tokens < need:
        want = f"at least {need} tokens for {what}, found {shards.tokens}"
        raise DataError(f"{shards.folder}: want {want}: give more text or shorter rows")


def refuse_media(shards: Shards) -> None:
    """Refuse a corpus of sounds and the like for rows that would read its texts alone."""
    if shards.media is not None:
        want = f"media, because the corpus has {shards.media.format.medium}s with texts"
        raise ConfigError("rows.kind", want=want, got="another kind")


def random_bits(count: int, seed: int, *where: int | str) -> NDArray[np.uint64]:
    """Draw 64 random bits for each of `count` things; the raw stream, which no library version changes."""
    bits = numpy_generator(seed, Purpose.DATA, *where).bit_generator.random_raw(count)
    return np.asarray(bits, np.uint64)


def permutation(count: int, seed: int, *where: int | str) -> NDArray[np.int64]:
    """Shuffle 0 .. count-1 by a key."""
    return np.argsort(random_bits(count, seed, *where), kind="stable").astype(np.int64, copy=False)
