"""Logit lens (nostalgebraist 2020): what the model's own last norm and head would predict from each layer's stream."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heddle.core import UsageError
from heddle.explain.inputs import EncoderReading, Observer, Reading, Section, modules_of, watch_blocks
from heddle.explain.observers.tokens import Candidate, best_tokens
from heddle.nn.base import Module
from heddle.nn.stack import Branch

LENS_TOP = 5


@dataclass(frozen=True)
class LensLayer:
    """The best tokens of each place after one layer."""

    name: str
    places: tuple[tuple[Candidate, ...], ...]

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"name": self.name, "places": [[one.plain() for one in place] for place in self.places]}


@dataclass(frozen=True)
class Lens(Section):
    """The logit lens: one row for the embedded tokens, and one after each layer; the last is the model's output."""

    sequence: str
    layers: tuple[LensLayer, ...]

    def plain(self) -> dict[str, Any]:
        return {"sequence": self.sequence, "layers": [each.plain() for each in self.layers]}


class LensObserver(Observer):
    """Applies the last norm and the head to the stream after each layer; `keep` reduces the logits at once."""

    def __init__(self, reading: Reading) -> None:
        refuse_without_residual_stream("lens", reading)
        if isinstance(reading, EncoderReading) and not reading.predicts_words:
            raise UsageError("lens: want an encoder that predicts masked tokens, got one that does not")
        self.reading, self.layers = reading, list[LensLayer]()
        self.keep: Callable[[str, Tensor], None] = self.keep_best

    def attach(self, hooks: contextlib.ExitStack) -> None:
        watch_blocks(self.reading, hooks, self.see)

    def see(self, name: str, stream: Tensor) -> None:
        """Predict from the stream after a layer."""
        self.keep(name, self.reading.stream_logits(stream))

    def keep_best(self, name: str, logits: Tensor) -> None:
        """Keep the best tokens of each place."""
        places = best_tokens(self.reading, logits[0], LENS_TOP)
        self.layers.append(LensLayer(name, tuple(place.best for place in places)))

    def result(self) -> Lens:
        return Lens(self.reading.main.name, tuple(self.layers))


def refuse_without_residual_stream(what: str, reading: Reading) -> None:
    """Refuse a model whose layers do more than add to the stream that the last norm and head read."""
    for name, branch in modules_of(reading.main, Branch):
        if not branch.join.additive:
            kind = type(branch.join).__name__.lower()
            raise UsageError(f"{what}: want layers that only add to the stream (pre-norm), got {kind} in {name}")
    for name, module in modules_of(reading.main, Module):
        if module.pooling_factor > 1:
            raise UsageError(f"{what}: want layers of one length, got pooling in {name}")
