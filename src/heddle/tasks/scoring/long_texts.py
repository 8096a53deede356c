"""Long texts: the loss by position, past the trained length too, and evaluation with attention sinks and a window."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, DataError, Positive, UsageError, check_at_least, settings
from heddle.data.shards import Shards
from heddle.decoding.runtime import StreamingConfig
from heddle.decoding.scoring import nll_long_texts
from heddle.models.networks import LanguageModel, Model, require
from heddle.tasks.scoring.counts import Counts, Evaluation, documents_of
from heddle.tasks.scoring.nll import with_document_start
from heddle.text.tokenizers import Tokenizer

TIMES = 8  # the trained length: how far the loss is measured by default
BUCKETS = 8  # for each trained length
STREAMED = "streamed"


def evaluate_streaming(
    model: Model, tokenizer: Tokenizer, texts: Iterable[str] | Shards, streaming: StreamingConfig
) -> Evaluation:
    """Measure a language model on texts, each read once in constant memory, with attention sinks and a window."""
    reader, counts = _language_model(model), Counts()
    read = documents_of(texts, tokenizer, counts)

    def counted() -> Iterator[NDArray[Any]]:
        for ids in read:
            counts.count_unknown(ids, tokenizer)
            yield ids

    begin, documents = with_document_start(tokenizer, counted())
    nats = math.fsum(float(each.double().sum()) for each in nll_long_texts(reader, documents, begin, streaming))
    if not counts.documents:
        raise DataError("evaluation: want one document or more, got none")
    return counts.evaluation(nats, streaming.window, None)


@settings
class PositionConfig(Config):
    """How the loss is measured by position.

    length: tokens of each row; None: eight times the model's context.
    bucket: positions measured together; None: an eighth of the context.
    rows: rows at most; None: all of the text.
    streaming: attention sinks and a window; None: all of a row is kept.
    """

    length: Positive | None = None
    bucket: Positive | None = None
    rows: Positive | None = None
    streaming: StreamingConfig | None = None


@dataclass
class PositionLosses:
    """The loss in nats per token by position, a mean for each bucket of positions."""

    length: int
    bucket: int
    context: int  # the length that the model was made for
    totals: NDArray[np.float64] = field(repr=False)
    squares: NDArray[np.float64] = field(repr=False)
    counts: NDArray[np.int64] = field(repr=False)

    @classmethod
    def empty(cls, length: int, bucket: int, context: int) -> "PositionLosses":
        """Return losses of no rows yet."""
        number = -(-length // bucket)
        return cls(length, bucket, context, np.zeros(number), np.zeros(number), np.zeros(number, np.int64))

    def add(self, losses: NDArray[np.float64]) -> None:
        """Add the losses of a row, from its first token on."""
        at = np.arange(len(losses)) // self.bucket
        self.totals += np.bincount(at, losses, len(self.totals))
        self.squares += np.bincount(at, losses**2, len(self.totals))
        self.counts += np.bincount(at, minlength=len(self.totals))

    def points(self) -> list[tuple[float, float]]:
        """Return the middle of each bucket and the loss there."""
        starts = range(0, self.length, self.bucket)
        middles = [(start + min(start + self.bucket, self.length) + 1) / 2 for start in starts]
        means = self.totals / np.maximum(self.counts, 1)
        return [(x, float(y)) for x, y, n in zip(middles, means, self.counts, strict=True) if n]

    def errors(self) -> list[float]:
        """Return the standard error of each bucket's loss, as if tokens were independent."""
        counts = np.maximum(self.counts, 1)
        variance = np.maximum(self.squares / counts - (self.totals / counts) ** 2, 0)
        return [math.sqrt(v / n) for v, n in zip(variance.tolist(), counts.tolist(), strict=True) if n]

    def mean(self, first: int, last: int) -> float:
        """Return the mean loss of the buckets that lie between two positions, both included; NaN: there are none."""
        starts = np.arange(0, self.length, self.bucket)
        inside = (starts + 1 >= first) & (np.minimum(starts + self.bucket, self.length) <= last)
        count = int(self.counts[inside].sum())
        return float(self.totals[inside].sum()) / count if count else math.nan

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        points = self.points()
        return {
            "length": self.length,
            "bucket": self.bucket,
            "context": self.context,
            "tokens": int(self.counts.sum()),
            "position": [x for x, _ in points],
            "loss": [y for _, y in points],
            "error": self.errors()[: len(points)],
            "loss_within_context": _or_none(self.mean(1, self.context)),
            "loss_beyond_context": _or_none(self.mean(self.context + 1, self.length)),
        }


def _or_none(number: float) -> float | None:
    """Return a number as JSON has it."""
    return None if math.isnan(number) else number


def loss_by_position(
    model: Model, tokenizer: Tokenizer, texts: Iterable[str] | Shards, config: PositionConfig | None = None
) -> PositionLosses:
    """Measure the loss by position in rows of up to eight times the trained length.

    Each text is cut into rows, which begin as a document does. A model whose positions end before that is refused.
    """
    config, reader = PositionConfig() if config is None else config, _language_model(model)
    length = TIMES * reader.context if config.length is None else config.length
    bucket = max(1, reader.context // BUCKETS) if config.bucket is None else config.bucket
    check_at_least(bucket, length=length)
    found = PositionLosses.empty(length, bucket, reader.context)
    begin, rows = with_document_start(tokenizer, _rows(documents_of(texts, tokenizer, Counts()), length, config.rows))
    for losses in nll_long_texts(reader, rows, begin, config.streaming):
        found.add(losses.double().numpy())
    if not found.counts.any():
        raise DataError("evaluation: want one token of text or more, got none")
    return found


def _rows(documents: Iterable[NDArray[Any]], length: int, most: int | None) -> Iterator[NDArray[Any]]:
    """Cut documents into rows; the rest of a document counts too, unless there are enough rows."""
    made = 0
    for ids in documents:
        for start in range(0, len(ids), length):
            if made == most:
                return
            made += 1
            yield ids[start : start + length]


def _language_model(model: Model) -> LanguageModel:
    return require(model, LanguageModel, UsageError(f"long texts: want a language model, got {model.config.noun}"))
