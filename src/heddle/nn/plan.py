"""Plans: how blocks become depth, with fresh weights (Repeat) or shared ones (Loop; Dehghani et al. 2018)."""

import dataclasses
from abc import ABC, abstractmethod

from torch import nn

from heddle.core import Config, ConfigError, part
from heddle.core.shapes import Stream
from heddle.nn.dropout import DropoutConfig, EachDropoutConfig
from heddle.nn.norms import NoNormConfig, NormConfig
from heddle.nn.part import Context, Module, Place


class PlanConfig(Config, ABC):
    """A tree of blocks; builds a module `(x, ctx) -> (x, ctx)`."""

    @abstractmethod
    def depth(self) -> int:
        """Count the blocks that a token passes through."""

    @abstractmethod
    def build(self, width: int, place: Place) -> "Plan":
        """Build the tree; `place` is where it begins."""


class Plan(Module, ABC):
    """A module `(x, ctx) -> (x, ctx)`; the context is replaced, never mutated."""

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        """Pass the stream on, with what later layers should know."""


def _times(field: str, value: int) -> None:
    if value < 1:
        raise ConfigError(field, want="at least 1", got=value)


@part("entry")
class EntryConfig(PlanConfig):
    """Norm and drop the stream before the first layer, once positions are in it (BERT and its kin)."""

    norm: NormConfig = NoNormConfig()
    dropout: DropoutConfig = EachDropoutConfig()

    def depth(self) -> int:
        return 0

    def build(self, width: int, place: Place) -> Plan:
        return Entry(width, self)


class Entry(Plan):
    """dropout(norm(x))."""

    def __init__(self, width: int, config: EntryConfig) -> None:
        super().__init__()
        self.norm, self.dropout = config.norm.build(width), config.dropout.build()

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return self.dropout(self.norm(x)), ctx


@part("repeat")
class RepeatConfig(PlanConfig):
    """The same body several times, each with weights of its own."""

    body: PlanConfig
    times: int

    def __post_init__(self) -> None:
        _times("times", self.times)

    def depth(self) -> int:
        return self.times * self.body.depth()

    def build(self, width: int, place: Place) -> Plan:
        return InOrder(width, (self.body,) * self.times, place)


@part("chain")
class ChainConfig(PlanConfig):
    """Different bodies, one after the other."""

    bodies: tuple[PlanConfig, ...]

    def __post_init__(self) -> None:
        _times("bodies", len(self.bodies))

    def depth(self) -> int:
        return sum(body.depth() for body in self.bodies)

    def build(self, width: int, place: Place) -> Plan:
        return InOrder(width, self.bodies, place)


class InOrder(Plan):
    """Each body in turn."""

    def __init__(self, width: int, bodies: tuple[PlanConfig, ...], place: Place) -> None:
        super().__init__()
        layer = place.layer
        for i, body in enumerate(bodies):
            self.add_module(str(i), body.build(width, place.inside(str(i), layer)))
            layer += body.depth()

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        for body in self.children():
            x, ctx = body(x, ctx)
        return x, ctx


@part("loop")
class LoopConfig(PlanConfig):
    """One body with one set of weights, gone through several times."""

    body: PlanConfig
    turns: int

    def __post_init__(self) -> None:
        _times("turns", self.turns)

    def depth(self) -> int:
        return self.turns * self.body.depth()

    def build(self, width: int, place: Place) -> Plan:
        return Loop(self.body.build(width, place.inside("body")), self.turns)


class Loop(Plan):
    """The body, turn after turn; each turn remembers for itself."""

    def __init__(self, body: nn.Module, turns: int) -> None:
        super().__init__()
        self.body, self.passes = body, turns

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        outer = ctx.turn
        for turn in range(self.passes):
            x, ctx = self.body(x, dataclasses.replace(ctx, turn=f"{outer}@{turn}"))
        return x, dataclasses.replace(ctx, turn=outer)
