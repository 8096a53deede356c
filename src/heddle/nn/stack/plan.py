"""Plans: how blocks are stacked: repeated, shared (Universal Transformer, Dehghani 2018), pooled (Funnel, Dai 2020)."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, ConfigError, Count, UsageError, check_at_least, part, within
from heddle.core.shapes import Bool, Stream
from heddle.nn.base import Context, Module, Place, Role
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig, NoNormConfig, NormConfig, base_mask

MAX_DEPTH = 10_000  # layers: beyond any model, and still built in a minute
PlanOutput = Float[Tensor, "batch left width"]  # as long as the input, or shorter after pooling
check_depth = within(f"1 to {MAX_DEPTH:,}", lambda layers: 1 <= layers <= MAX_DEPTH)
Depth = Annotated[int, check_depth]


class PlanConfig(Config, ABC):
    """A tree of blocks; builds a module `(x, ctx) -> (x, ctx)`."""

    @abstractmethod
    def depth(self) -> int:
        """Return the number of blocks that a token passes through."""

    @abstractmethod
    def build(self, width: int, place: Place) -> "Plan":
        """Build the tree; `place` is where it starts."""


class Plan(Module, ABC):
    """A module `(x, ctx) -> (x, ctx)`; the context is replaced, never mutated."""

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> tuple[PlanOutput, Context]:
        """Return the stream, and the context for later layers."""


@part("entry")
class EntryConfig(PlanConfig):
    """Norm and dropout before the first layer, after positions are added (BERT).

    norm: norm of the embedded tokens.
    dropout: dropout of the embedded tokens.
    """

    norm: NormConfig = NoNormConfig()
    dropout: DropoutConfig = ElementDropoutConfig()

    def depth(self) -> int:
        return 0

    def build(self, width: int, place: Place) -> Plan:
        return StackEntry(width, self)


class StackEntry(Plan):
    """dropout(norm(x))."""

    def __init__(self, width: int, config: EntryConfig) -> None:
        super().__init__()
        self.norm, self.dropout = config.norm.build(width), config.dropout.build()

    def forward(self, x: Stream, ctx: Context) -> tuple[PlanOutput, Context]:
        return self.dropout(self.norm(x)), ctx


@part("repeat")
class RepeatConfig(PlanConfig):
    """Repeat a body, each time with its own weights.

    body: what is repeated.
    times: how many times: the number of layers.
    """

    body: PlanConfig
    times: Depth

    def depth(self) -> int:
        return self.times * self.body.depth()

    def build(self, width: int, place: Place) -> Plan:
        return SequentialPlan(width, (self.body,) * self.times, place)


@part("chain")
class ChainConfig(PlanConfig):
    """Different bodies in sequence.

    bodies: the bodies, in order.
    """

    bodies: tuple[PlanConfig, ...]

    def __post_init__(self) -> None:
        check_at_least(1, bodies=len(self.bodies))

    def depth(self) -> int:
        return sum(body.depth() for body in self.bodies)

    def build(self, width: int, place: Place) -> Plan:
        return SequentialPlan(width, self.bodies, place)


class SequentialPlan(Plan):
    """Each body in turn."""

    def __init__(self, width: int, bodies: tuple[PlanConfig, ...], place: Place) -> None:
        super().__init__()
        layer = place.layer
        for i, body in enumerate(bodies):
            self.add_module(str(i), body.build(width, place.child(str(i), layer)))
            layer += body.depth()

    def forward(self, x: Stream, ctx: Context) -> tuple[PlanOutput, Context]:
        for body in self.children():
            x, ctx = body(x, ctx)
        return x, ctx


@part("loop")
class LoopConfig(PlanConfig):
    """Weight sharing across layers: one body, run several times (ALBERT, Lan et al. 2020).

    body: what is run several times.
    turns: how many times it runs.
    """

    body: PlanConfig
    turns: Depth

    def depth(self) -> int:
        return self.turns * self.body.depth()

    def build(self, width: int, place: Place) -> Plan:
        return Loop(self.body.build(width, place.child("body")), self.turns)


class Loop(Plan):
    """The body, turn after turn; each turn has its own state."""

    def __init__(self, body: nn.Module, turns: int) -> None:
        super().__init__()
        self.body, self.repeats = body, turns

    def forward(self, x: Stream, ctx: Context) -> tuple[PlanOutput, Context]:
        outer = ctx.turn
        for turn in range(self.repeats):
            x, ctx = self.body(x, dataclasses.replace(ctx, turn=f"{outer}@{turn}"))
        return x, dataclasses.replace(ctx, turn=outer)


@part("stepped_loop")
class SteppedLoopConfig(PlanConfig):
    """Universal Transformer: one body, run several times, with a learned embedding of each turn (Dehghani 2018).

    body: what is run several times.
    turns: how many times it runs with an embedding of the turn.
    before: further turns without an embedding, first.
    after: further turns without an embedding, last.
    """

    body: PlanConfig
    turns: Depth
    before: Count = 0
    after: Count = 0

    def depth(self) -> int:
        return (self.before + self.turns + self.after) * self.body.depth()

    def build(self, width: int, place: Place) -> Plan:
        return SteppedLoop(width, self, place)


class SteppedLoop(Plan):
    """x = body(x + steps[turn]), turn after turn; each turn has its own state."""

    roles = {"steps": Role.EMBEDDING}

    def __init__(self, width: int, config: SteppedLoopConfig, place: Place) -> None:
        super().__init__()
        self.before, self.turns = config.before, config.turns
        self.repeats = config.before + config.turns + config.after
        self.steps = nn.Parameter(torch.empty(config.turns, width))
        self.body = config.body.build(width, place.child("body"))

    def forward(self, x: Stream, ctx: Context) -> tuple[PlanOutput, Context]:
        outer = ctx.turn
        for turn in range(self.repeats):
            step = turn - self.before
            if 0 <= step < self.turns:
                x = x + self.steps[step].to(x.dtype)
            x, ctx = self.body(x, dataclasses.replace(ctx, turn=f"{outer}@{turn}"))
        return x, dataclasses.replace(ctx, turn=outer)


@part("pool")
class PoolConfig(PlanConfig):
    """Mean pooling over time: later layers run on shorter rows (Funnel Transformer, Dai et al. 2020).

    It is for encoders: packed documents, a state and the sight `past` are refused.

    size: positions that become one.
    """

    size: Annotated[int, within("at least 2", lambda size: size >= 2)] = 2

    def depth(self) -> int:
        return 0

    def build(self, width: int, place: Place) -> Plan:
        if place.sight != "all":
            raise ConfigError("sight", want="all, because pooling mixes a position with later ones", got=place.sight)
        return Pool(self.size)


class Pool(Plan):
    """mean(x[i * size : (i + 1) * size]), over real tokens only."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.pooling_factor = size

    def forward(self, x: Stream, ctx: Context) -> tuple[PlanOutput, Context]:
        if ctx.documents is not None:
            raise UsageError("pooling would mix two documents: want one document a row, got packed documents")
        if ctx.state is not None:
            raise UsageError("pooling reads whole rows: it cannot continue from a state")
        size, length = self.pooling_factor, x.shape[1]
        short = -(-length // size)
        padding = short * size - length
        real = ctx.real(x)
        real = x.new_ones(1, length) if real is None else real.to(x.dtype)
        total = F.pad(x * real[..., None], (0, 0, 0, padding)).unflatten(1, (short, size)).sum(2)
        count = F.pad(real, (0, padding)).unflatten(1, (short, size)).sum(2).clamp(min=1)
        return total / count[..., None], pooled_context(ctx, short, size, x.device)


def _all_ignored(ignored: Bool[Tensor, "batch length"], length: int, size: int) -> Bool[Tensor, "batch short"]:
    """Tell which pooled positions consist of ignored tokens only."""
    return F.pad(ignored, (0, length * size - ignored.shape[1]), value=True).unflatten(1, (length, size)).all(2)  # type: ignore[no-any-return]


def pooled_context(ctx: Context, length: int, size: int, device: torch.device) -> Context:
    """Return the context of pooled rows, with positions from 0 and shorter padding."""
    lengths = None if ctx.lengths is None else (ctx.lengths + size - 1) // size
    relation = ctx.relation
    if relation is not None:
        relation = dataclasses.replace(relation, index=relation.index[:, :length, :length])
    return dataclasses.replace(
        ctx,
        lengths=lengths,
        ignored=None if ctx.ignored is None else _all_ignored(ctx.ignored, length, size),
        positions=None if ctx.positions is None else ctx.positions[:, :length],
        segments=None if ctx.segments is None else ctx.segments[:, ::size],
        allowed=base_mask(Context(lengths=lengths), length, "all", device),
        rotation=None if ctx.rotation is None else ctx.rotation.truncate(length),
        relation=relation,
        bias=None if ctx.bias is None else {heads: b[:, :, :length, :length] for heads, b in ctx.bias.items()},
    )
