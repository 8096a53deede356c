"""Logits of one place, from which the probabilities at any temperature follow; KL divergence of two models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heddle.core import UsageError
from heddle.explain.display import short
from heddle.explain.inputs import DecoderReading, EncoderReading, ExplainOptions, Reading, read
from heddle.explain.observers import Candidate, Probabilities, best_tokens, probabilities
from heddle.models.networks import Model
from heddle.nn.base import upcast
from heddle.text.tokenizers import Tokenizer

CHUNK = 1 << 21  # probabilities that are computed at once
BITS = 0.6931471805599453  # nats of a bit


@dataclass(frozen=True)
class PlaceLogits:
    """All logits at a place, and its best tokens.

    `predicts`: next token (after the place), masked token (at the place) or class (of the text).
    """

    predicts: str
    place: int
    logits: Tensor
    best: tuple[Candidate, ...]

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = {"predicts": self.predicts, "place": self.place, "best": [one.plain() for one in self.best]}
        return short(found | {"logits": self.logits.tolist()})  # type: ignore[no-any-return]


def place_logits(
    model: Model,
    tokenizer: Tokenizer | None,
    text: str | Sequence[int],
    place: int,
    options: ExplainOptions | None = None,
) -> PlaceLogits:
    """Return the logits at a place of the row that is predicted; an encoder reads it with that token masked."""
    options = ExplainOptions() if options is None else options
    reading = read(model, tokenizer, text, options)
    if not 0 <= place < len(reading.main.ids):
        raise UsageError(f"place: want 0 to {len(reading.main.ids) - 1}, got {place}")
    with reading.looking():
        logits = upcast(reading.place_logits(place)).cpu()
    names = reading.classes if isinstance(reading, EncoderReading) else ()
    (found,) = best_tokens(reading, logits[None], min(options.top, len(logits)), names)
    return PlaceLogits(reading.predicts, place, logits, found.best)


@dataclass(frozen=True)
class NextTokens:
    """What a language model expects after every token of a text."""

    reading: Reading
    logits: Tensor  # [length, vocab]
    found: Probabilities


def next_tokens(model: Model, tokenizer: Tokenizer, text: str | Sequence[int]) -> NextTokens:
    """Return the logits after every token of a text."""
    reading = read(model, tokenizer, text, ExplainOptions())
    if not isinstance(reading, DecoderReading):
        raise UsageError(f"models: want two language models, got {model.config.noun}")
    logits = reading.logits()
    return NextTokens(reading, logits[0].cpu(), probabilities(reading, logits, 1))


def kl_divergences(first: NextTokens, second: NextTokens) -> list[float]:
    """Return the KL divergence of the second model from the first after every token, in bits."""
    ours, theirs = first.reading.main, second.reading.main
    same = ours.ids == theirs.ids and ours.texts == theirs.texts
    if not same or first.logits.shape != second.logits.shape:
        raise UsageError("models: want two with the same vocabulary, which read the text as the same tokens")
    found: list[float] = []
    rows = max(1, CHUNK // first.logits.shape[-1])
    for one, other in zip(first.logits.split(rows), second.logits.split(rows), strict=True):
        p, q = (upcast(part).double().log_softmax(-1) for part in (one, other))
        found += ((p.exp() * (p - q)).nan_to_num(0.0).sum(-1).clamp(min=0) / BITS).tolist()
    return found
