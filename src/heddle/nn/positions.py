"""Positions: how order enters (sinusoidal and learned, Vaswani et al. 2017; rotary, Su et al. 2021; or not at all)."""

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from heddle.core import Config, ConfigError, UsageError, part
from heddle.core.shapes import Stream
from heddle.nn.part import Context, Entrance, Module, Place, Role, Rotation


class PositionConfig(Config, ABC):
    """How a model knows the order of its tokens; the stack owns one, its result travels in the context."""

    enters: ClassVar[Entrance] = "stream"

    @abstractmethod
    def build(self, width: int, place: Place) -> "Position":
        """Build the module that adds to the stream, or leaves something in the context."""


class Position(Module, ABC):
    """A module `(x, ctx) -> (x, ctx)` run once, before the first layer."""

    longest: int | None = None  # the most positions there can be; None: no end

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        """Let order into the stream or the context."""

    def reach(self, length: int) -> None:
        """Make ready for positions below `length`; a kind with no more to give refuses."""


def look_up(table: Tensor, ctx: Context, length: int) -> Tensor:
    """Return the rows of a table at the context's positions, with a leading batch dimension."""
    return table[None, :length] if ctx.positions is None else table[ctx.positions]


@part("none")
class NoPositionConfig(PositionConfig):
    """Give no position: a recurrent model needs none, a causal one can do without."""

    def build(self, width: int, place: Place) -> Position:
        return NoPosition()


class NoPosition(Position):
    """x."""

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x, ctx


@part("learned")
class LearnedPositionConfig(PositionConfig):
    """Add a learned vector for each index."""

    def build(self, width: int, place: Place) -> Position:
        return LearnedPosition(width, place.context)


class LearnedPosition(Position):
    """x + weight[position]."""

    roles = {"weight": Role.EMBEDDING}

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.weight, self.longest = nn.Parameter(torch.empty(context, width)), context

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x + look_up(self.weight, ctx, x.shape[1]).to(x.dtype), ctx

    def reach(self, length: int) -> None:
        if length > len(self.weight):
            raise UsageError(f"length {length} is past the model's context of {len(self.weight)} learned positions")


@part("sinusoidal")
class SinusoidalPositionConfig(PositionConfig):
    """Add sines and cosines of geometrically falling frequency, interleaved."""

    base: float = 10_000.0

    def build(self, width: int, place: Place) -> Position:
        if width % 2:
            raise ConfigError("width", want="an even number for sinusoidal positions", got=width)
        return SinusoidalPosition(width, place.context, self.base)


class SinusoidalPosition(Position):
    """x + [sin(p / base^(2i/width)), cos(...)]."""

    table: Tensor

    def __init__(self, width: int, context: int, base: float) -> None:
        super().__init__()
        self.width, self.base = width, base
        self.register_buffer("table", torch.empty(context, width), persistent=False)
        self.reset_tables()

    def reset_tables(self) -> None:
        turns = angles(len(self.table), self.width, self.base, self.table.device)
        waves = torch.stack((turns.sin(), turns.cos()), dim=-1).flatten(1)
        self.table = waves.to(self.table.dtype)

    def reach(self, length: int) -> None:
        if length > len(self.table):
            with torch.inference_mode(False):  # a table made while decoding must still serve in training
                self.table = self.table.new_empty(grown(length), self.width)
                self.reset_tables()

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x + look_up(self.table, ctx, x.shape[1]).to(x.dtype), ctx


@part("rotary")
class RotaryPositionConfig(PositionConfig):
    """Turn queries and keys by an angle that grows with position, so that scores see distance only."""

    enters = "rotation"

    base: float = 10_000.0

    def build(self, width: int, place: Place) -> Position:
        if place.head_width is None or place.head_width % 2:
            raise ConfigError("head_width", want="an even number for rotary positions", got=place.head_width)
        return RotaryPosition(place.head_width, place.context, self.base)


class RotaryPosition(Position):
    """Leaves cos and sin in the context; attention applies them."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, context: int, base: float) -> None:
        super().__init__()
        self.head_width, self.base = head_width, base
        # tables live in buffers: computed inside a compiled graph they would be redone in every layer's kernels
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(context, head_width // 2), persistent=False)
        self.reset_tables()

    def reset_tables(self) -> None:
        turns = angles(len(self.cos), self.head_width, self.base, self.cos.device)
        self.cos, self.sin = turns.cos().to(self.cos.dtype), turns.sin().to(self.sin.dtype)

    def reach(self, length: int) -> None:
        if length > len(self.cos):
            with torch.inference_mode(False):  # a table made while decoding must still serve in training
                self.cos = self.sin = self.cos.new_empty(grown(length), self.head_width // 2)
                self.reset_tables()

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        cos, sin = (look_up(table, ctx, x.shape[1]).to(x.dtype) for table in (self.cos, self.sin))
        return x, dataclasses.replace(ctx, rotation=Rotation(cos, sin))


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn each pair (i, i + half) of every head's vector; x is [batch, heads, length, head_width]."""
    left, right = x.chunk(2, dim=-1)
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def angles(length: int, width: int, base: float, device: torch.device) -> Tensor:
    """Return position x frequency, in double precision, for half as many frequencies as the width."""
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
    return torch.arange(length, dtype=torch.float64, device=device)[:, None] * base**-exponent


def grown(length: int) -> int:
    """Return the power of two that holds a length: tables grow seldom."""
    return 1 << (length - 1).bit_length()
