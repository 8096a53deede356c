"""Span corruption (T5, Raffel et al. 2020): spans of a text become sentinels, and the target tells what they hid.

A row of L tokens always has the same number of hidden tokens and spans, so that sources and targets have one shape.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import ConfigError, Share, part, within
from heddle.data.rows import Batch, RowsConfig, row_generators
from heddle.models.networks import EncoderDecoder, Model
from heddle.nn.state import State
from heddle.objectives.objective import (
    DECODER_START,
    END,
    Coefficient,
    Loss,
    ObjectiveConfig,
    real_lengths,
    require_encoder_decoder,
    sequence_loss,
)

SENTINELS = 100  # as T5 has them
OURS, T5S = "<|extra_{}|>", "<extra_id_{}>"
# The highest ids go to the last names, so that sentinel 0 has the highest, and the others descend.
SENTINEL_NAMES = tuple(OURS.format(number) for number in reversed(range(SENTINELS)))

Ids = NDArray[np.int64]
Between = Annotated[float, within("above 0 and below 1", lambda share: 0 < share < 1)]
MeanSpan = Annotated[float, within("at least 1", lambda span: span >= 1)]


@part("span_corruption")
class SpanCorruptionConfig(ObjectiveConfig):
    """Span corruption (T5): a sentinel stands for each hidden span; the target has each span after its sentinel.

    Rows of 568 tokens become sources of 512 tokens and targets of 114; the end token and the sentinels count.

    corruption_rate: share of a row's tokens that are hidden.
    mean_span: mean length of a hidden span; None: one span, which ends the row (UL2's sequential denoiser).
    smoothing: label smoothing: share of each target's probability that is spread over all tokens.
    z_loss: coefficient of the square of the softmax's log-normalizer, which keeps logits small; 0: none.
    sentinels: ids of the sentinels in order; None: as the run's tokenizer has them.
    end: id that ends source and target; None: as the run's tokenizer has it.
    start: first id that the decoder reads; None: as the run's tokenizer has it.
    """

    corruption_rate: Between = 0.15
    mean_span: MeanSpan | None = 3.0
    smoothing: Share = 0.0
    z_loss: Coefficient = 0.0
    sentinels: tuple[int, ...] | None = None
    end: int | None = None
    start: int | None = None

    control_tokens: ClassVar[tuple[str, ...]] = SENTINEL_NAMES
    predicts_every_token: ClassVar[bool] = False
    makes_source: ClassVar[bool] = True

    def resolve(self, special: Mapping[str, int], vocab: int) -> "SpanCorruptionConfig":
        sentinels = sentinels_in(special) if self.sentinels is None else self.sentinels
        if not sentinels:
            raise ConfigError("tokenizer.special", want=f"{SENTINEL_NAMES[-1]} and so on, as sentinels", got="none")
        end = special[END] if self.end is None else self.end
        start = special[DECODER_START] if self.start is None else self.start
        return dataclasses.replace(self, sentinels=sentinels, end=end, start=start)

    def missing_control_tokens(self, special: Mapping[str, int]) -> tuple[str, ...]:
        return () if sentinels_in(special) else SENTINEL_NAMES

    def side_lengths(self, length: int) -> tuple[int, int]:
        return corrupted_lengths(length, self.corruption_rate, self.mean_span)

    def check_rows(self, rows: RowsConfig) -> None:
        super().check_rows(rows)
        most = SENTINELS if self.sentinels is None else len(self.sentinels)
        _, spans = noise_counts(rows.max_length, self.corruption_rate, self.mean_span)
        if spans > most:
            want = f"shorter rows, because {spans} spans of a row would need as many sentinels, and there are {most}"
            raise ConfigError("rows.length", want=want, got=rows.max_length)

    def prepare(self, batch: Batch, seed: int) -> Batch:
        """Make source and target of each row, by draws of its own; a row that is cut short is padded with `end`."""
        if self.sentinels is None or self.end is None or self.start is None:
            raise ConfigError("objective.sentinels", want="ids, which `resolve` fills in", got=self.sentinels)
        texts, sentinels = batch.targets.numpy(), np.array(self.sentinels, np.int64)
        sizes = corrupted_lengths(texts.shape[1], self.corruption_rate, self.mean_span)
        sides = [np.full((len(texts), size), self.end, np.int64) for size in sizes]
        weights = np.zeros(sides[1].shape, np.float32)
        draws = row_generators(seed, [("spans", number) for number in batch.rows.tolist()])
        for row, (draw, real) in enumerate(zip(draws, real_lengths(batch), strict=True)):
            hidden = random_spans(int(real), self.corruption_rate, self.mean_span, draw)
            source, target = corrupt(texts[row, :real], hidden, sentinels)
            sides[0][row, : len(source)], sides[1][row, : len(target)] = source, target
            weights[row, : len(target) + 1] = float(real > 1)  # and the end token
        return source_and_target(batch, sides[0], sides[1], weights, self.start)

    def checked_model(self, model: Model) -> EncoderDecoder:
        return require_encoder_decoder(model, self)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        if batch.source is None:
            raise ConfigError("batch", want="one with sources, made by `prepare`", got="plain text")
        return sequence_loss(self.checked_model(model), batch, self.smoothing, self.z_loss)


def sentinels_in(special: Mapping[str, int]) -> tuple[int, ...]:
    """Return the ids of a tokenizer's sentinels in order: ours, or T5's; () where there are none."""
    for name in (OURS, T5S):
        found: list[int] = []
        while (one := name.format(len(found))) in special:
            found.append(special[one])
        if found:
            return tuple(found)
    return ()


def source_and_target(batch: Batch, source: Ids, target: Ids, weights: NDArray[np.float32], start: int) -> Batch:
    """Return a batch for an encoder-decoder: the decoder reads the target after its first id."""
    inputs = np.roll(target, 1, axis=1)
    inputs[:, 0] = start
    sides = torch.from_numpy(inputs), torch.from_numpy(target), torch.from_numpy(weights)
    return Batch(*sides, batch.rows, source=torch.from_numpy(source))


# --- the noise --------------------------------------------------------------------------------------------------------


def noise_counts(length: int, rate: float, mean_span: float | None) -> tuple[int, int]:
    """Return how many tokens of a text are hidden, and in how many spans; at least one of each, and one stays."""
    if length < 2:
        return 0, 0
    hidden = min(max(round(length * rate), 1), length - 1)
    spans = 1 if mean_span is None else round(hidden / mean_span)
    return hidden, min(max(spans, 1), length - hidden)


def corrupted_lengths(length: int, rate: float, mean_span: float | None) -> tuple[int, int]:
    """Return the lengths of source and target of a text, with sentinels and end tokens."""
    hidden, spans = noise_counts(length, rate, mean_span)
    return length - hidden + spans + 1, hidden + spans + 1


def random_spans(length: int, rate: float, mean_span: float | None, draw: np.random.Generator) -> NDArray[np.bool_]:
    """Draw which tokens are hidden: as many in as many spans as `noise_counts` has; the first token never is."""
    hidden, spans = noise_counts(length, rate, mean_span)
    if not spans:
        return np.zeros(length, bool)
    lengths = [random_segmentation(count, spans, draw) for count in (hidden, length - hidden)]
    runs = np.stack(lengths[::-1], axis=1).ravel()  # a visible run, a hidden one, and so on
    return np.repeat(np.arange(2 * spans) % 2 == 1, runs)


def random_segmentation(items: int, segments: int, draw: np.random.Generator) -> Ids:
    """Draw the lengths of segments of at least one item; each way to cut the items is as likely."""
    cuts = np.flatnonzero(draw.permutation(items - 1) < segments - 1) + 1
    edges = np.concatenate(([0], cuts, [items]))
    return np.asarray(edges[1:] - edges[:-1])


def corrupt(text: Ids, hidden: NDArray[np.bool_], sentinels: Ids) -> tuple[Ids, Ids]:
    """Return source and target of a text without their end tokens, a sentinel in each for each hidden span."""
    return spans_to_sentinels(text, hidden, sentinels), spans_to_sentinels(text, ~hidden, sentinels)


def spans_to_sentinels(text: Ids, marked: NDArray[np.bool_], sentinels: Ids) -> Ids:
    """Return a text in which a sentinel stands for each marked span."""
    first = marked & ~np.concatenate(([False], marked[:-1]))[: len(marked)]
    replaced = text.copy()
    replaced[first] = sentinels[: int(first.sum())]
    return np.asarray(replaced[first | ~marked])
