"""Positions: how order enters; here what a table adds to the stream (Vaswani et al. 2017), or nothing at all."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from heddle.core import Config, ConfigError, UsageError, check_at_least, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Module, Place, PositionInput, Role


class PositionConfig(Config, ABC):
    """How a model knows the order of its tokens; the stack owns one, its result travels in the context."""

    provides: ClassVar[PositionInput] = "stream"

    @abstractmethod
    def build(self, width: int, place: Place) -> "Position":
        """Build the module that adds to the stream, or leaves something in the context."""


class Position(Module, ABC):
    """A module `(x, ctx) -> (x, ctx)` run once, before the first layer."""

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        """Let order into the stream or the context."""

    def reserve(self, length: int) -> None:
        """Make ready for positions below `length`; a kind with no more to give refuses."""


def check_base(base: float) -> None:
    """Refuse a base whose powers do not grow."""
    if not base > 1:
        raise ConfigError("base", want="above 1", got=base)


def lookup_positions(table: Tensor, ctx: Context, length: int) -> Tensor:
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

    first: int = 0  # row of the first position; the rows before it are never used (RoBERTa and BART have two)

    def __post_init__(self) -> None:
        check_at_least(0, first=self.first)

    def build(self, width: int, place: Place) -> Position:
        return LearnedPosition(width, place.context, self.first)


class LearnedPosition(Position):
    """x + weight[first + position]."""

    roles = {"weight": Role.EMBEDDING}

    def __init__(self, width: int, context: int, first: int) -> None:
        super().__init__()
        self.weight, self.max_length, self.first = nn.Parameter(torch.empty(first + context, width)), context, first

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x + lookup_positions(self.weight[self.first :], ctx, x.shape[1]).to(x.dtype), ctx

    def reserve(self, length: int) -> None:
        most = len(self.weight) - self.first
        if length > most:
            raise UsageError(f"length {length} is past the model's context of {most} learned positions")


@part("sinusoidal")
class SinusoidalPositionConfig(PositionConfig):
    """Add sines and cosines of geometrically falling frequency."""

    base: float = 10_000.0
    order: Literal["interleaved", "halves"] = "interleaved"  # sine beside cosine, or all sines before all cosines

    def __post_init__(self) -> None:
        check_base(self.base)

    def build(self, width: int, place: Place) -> Position:
        if width % 2:
            raise ConfigError("width", want="an even number for sinusoidal positions", got=width)
        return SinusoidalPosition(width, place.context, self)


class SinusoidalPosition(Position):
    """x + [sin(p / base^(2i/width)), cos(...)]."""

    table: Tensor

    def __init__(self, width: int, context: int, config: SinusoidalPositionConfig) -> None:
        super().__init__()
        self.width, self.config = width, config
        self.register_buffer("table", torch.empty(context, width), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        if self.table.is_meta:
            return
        turns = angles(len(self.table), frequencies(self.width, self.config.base, self.table.device))
        waves = torch.stack((turns.sin(), turns.cos()), dim=-1 if self.config.order == "interleaved" else 1)
        self.table = waves.flatten(1).to(self.table.dtype)

    def reserve(self, length: int) -> None:
        if length > len(self.table):
            with torch.inference_mode(False):  # a table made while decoding must still serve in training
                self.table = self.table.new_empty(next_power_of_two(length), self.width)
                self.reset_buffers()

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x + lookup_positions(self.table, ctx, x.shape[1]).to(x.dtype), ctx


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """Return half as many frequencies as the width, falling from 1 towards 1 / base, in double precision."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def angles(length: int, frequency: Tensor) -> Tensor:
    """Return position x frequency for so many positions."""
    return torch.arange(length, dtype=frequency.dtype, device=frequency.device)[:, None] * frequency


def next_power_of_two(length: int) -> int:
    """Return the power of two that holds a length: tables grow seldom."""
    return 1 << (length - 1).bit_length()
