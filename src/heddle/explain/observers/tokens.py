"""Tokens and their probabilities: the most probable ones of each place, entropy, and each token's surprisal."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.explain.inputs import EncoderReading, Reading, Section
from heddle.nn.base import upcast

CHUNK = 1 << 21  # probabilities that are computed at once


@dataclass(frozen=True)
class Candidate:
    """A token that may stand at a place, or a class, and its probability."""

    id: int
    text: str
    probability: float
    logit: float

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"id": self.id, "text": self.text, "probability": self.probability, "logit": self.logit}


@dataclass(frozen=True)
class TokenDistribution:
    """The distribution at a place: its best tokens, and its entropy in bits."""

    best: tuple[Candidate, ...]
    entropy: float

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"entropy": self.entropy, "best": [one.plain() for one in self.best]}


@dataclass(frozen=True)
class Probabilities(Section):
    """The log-probability of each token given its context, in nats, and the distribution at each place.

    `predicts`: next token (after the place), masked token (at the place) or class (of the text).
    """

    sequence: str
    predicts: str
    logprobs: tuple[float | None, ...]  # None: a token that nothing predicts, such as the first
    places: tuple[TokenDistribution, ...]

    @property
    def surprisals(self) -> tuple[float | None, ...]:
        """Return the surprisal of each token in bits."""
        return tuple(None if one is None else -one / math.log(2) for one in self.logprobs)

    def plain(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "predicts": self.predicts,
            "logprobs": list(self.logprobs),
            "surprisals": list(self.surprisals),
            "places": [one.plain() for one in self.places],
        }


def best_tokens(reading: Reading, logits: Tensor, top: int, names: Sequence[str] = ()) -> list[TokenDistribution]:
    """Return the distribution of each row of logits, cut to the best `top`."""
    rows = max(1, CHUNK // logits.shape[-1])
    return [place for part in logits.split(rows) for place in _best_tokens(reading, part, top, names)]


def _best_tokens(reading: Reading, logits: Tensor, top: int, names: Sequence[str]) -> Iterator[TokenDistribution]:
    logprobs = upcast(logits).log_softmax(-1)
    values, ids = logprobs.topk(min(top, logprobs.shape[-1]), dim=-1)
    chosen = upcast(logits).gather(-1, ids)
    entropies = (torch.special.entr(logprobs.exp()).sum(-1) / math.log(2)).tolist()
    named = {id: names[id] if names else reading.token(id) for id in set(ids.flatten().tolist())}
    rows = zip(ids.tolist(), values.exp().tolist(), chosen.tolist(), entropies, strict=True)
    for *row, entropy in rows:
        best = tuple(Candidate(id, named[id], p, logit) for id, p, logit in zip(*row, strict=True))
        yield TokenDistribution(best, entropy)


def _own_logprobs(logits: Tensor, ids: Tensor) -> list[float]:
    """Return the log-probability of an id in each row."""
    rows, found = max(1, CHUNK // logits.shape[-1]), list[float]()
    for part, own in zip(logits.split(rows), ids.split(rows), strict=True):
        found += upcast(part).log_softmax(-1).gather(-1, own[:, None])[:, 0].tolist()
    return found


def probabilities(reading: Reading, logits: Tensor, top: int) -> Probabilities:
    """Return probabilities from the logits of the forward pass; an encoder masks each token in turn."""
    sequence = reading.main
    if not isinstance(reading, EncoderReading):
        own = _own_logprobs(logits[0, :-1], reading.ids(sequence)[0, 1:]) if len(sequence.ids) > 1 else []
        return Probabilities(sequence.name, "next token", (None, *own), tuple(best_tokens(reading, logits[0], top)))
    if reading.classes:
        places = best_tokens(reading, logits, top, reading.classes)
        return Probabilities(sequence.name, "class", (None,) * len(sequence.ids), tuple(places))
    if not reading.predicts_words:
        raise UsageError("probabilities: want an encoder with an output for masked tokens or classes, got neither")
    return _masked(reading, top)


def _masked(reading: EncoderReading, top: int) -> Probabilities:
    """Mask each token in turn; a mask of the text is predicted, and has no surprisal."""
    sequence, masks = reading.main, reading.masks
    logprobs: list[float | None] = []
    places: list[TokenDistribution] = []
    with reading.looking():
        for place, logits in enumerate(reading.masked_logits(range(len(sequence.ids)))):
            own = upcast(logits).log_softmax(-1)[sequence.ids[place]]
            logprobs.append(None if place in masks else float(own))
            places += best_tokens(reading, logits[None], top)
    return Probabilities(sequence.name, "masked token", tuple(logprobs), tuple(places))
