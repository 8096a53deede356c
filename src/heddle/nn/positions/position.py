"""Positional encodings: their interface, and those added to the stream: learned, sinusoidal (Vaswani 2017), none."""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from heddle.core import Config, ConfigError, Count, UsageError, part, within
from heddle.core.shapes import Int, Stream
from heddle.nn.base import Context, Module, Place, PositionInput, Role, Rotation


class PositionConfig(Config, ABC):
    """A positional encoding; a tower has one, and passes its result to the layers in the context."""

    provides: ClassVar[PositionInput] = "stream"

    @abstractmethod
    def build(self, width: int, place: Place) -> "Position":
        """Build the module that adds to the stream or to the context."""


class Position(Module, ABC):
    """A module `(x, ctx) -> (x, ctx)`, run once, before the first layer."""

    is_relative: ClassVar[bool] = False  # whether scores depend on distances alone, so that cached tokens can be moved

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        """Add positions to the stream or the context."""

    def reserve(self, length: int) -> None:
        """Extend tables to positions below `length`, or refuse."""

    def shift(self, places: Int[Tensor, "batch length"], full: bool, dtype: torch.dtype) -> Rotation | None:
        """Return the rotation that moves cached keys of full attention or a window by so many positions; None: none."""
        return None


Base = Annotated[float, within("above 1", lambda base: base > 1)]  # of the frequencies


def lookup_positions(table: Tensor, ctx: Context, length: int) -> Tensor:
    """Return the rows of a table at the context's positions, with a leading batch dimension."""
    return table[None, :length] if ctx.positions is None else table[ctx.positions]


@part("none")
class NoPositionConfig(PositionConfig):
    """No positional encoding (NoPE): recurrent models need none, and causal ones can work without."""

    def build(self, width: int, place: Place) -> Position:
        return NoPosition()


class NoPosition(Position):
    """x."""

    is_relative = True

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x, ctx


@part("learned")
class LearnedPositionConfig(PositionConfig):
    """Learned absolute positions: a vector for each index.

    first: row of the first position; the rows before it are unused (RoBERTa and BART have two).
    """

    first: Count = 0

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
            raise UsageError(f"sequence length {length} exceeds the model's context of {most} learned positions")


@part("sinusoidal")
class SinusoidalPositionConfig(PositionConfig):
    """Sinusoidal positions (Vaswani et al. 2017): sines and cosines of geometrically falling frequency.

    base: the wavelengths grow up to 2π times it.
    order: sines and cosines alternate, or all sines come first.
    """

    base: Base = 10_000.0
    order: Literal["interleaved", "halves"] = "interleaved"

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
        phases = angles(len(self.table), frequencies(self.width, self.config.base, self.table.device))
        waves = torch.stack((phases.sin(), phases.cos()), dim=-1 if self.config.order == "interleaved" else 1)
        self.table = waves.flatten(1).to(self.table.dtype)

    def reserve(self, length: int) -> None:
        if length > len(self.table):
            with torch.inference_mode(False):  # a table made while decoding must be usable in training
                self.table = self.table.new_empty(next_power_of_two(length), self.width)
                self.reset_buffers()

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x + lookup_positions(self.table, ctx, x.shape[1]).to(x.dtype), ctx


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """Return half as many frequencies as the width, falling from 1 towards 1 / base, in double precision."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def angles(length: int, frequency: Tensor) -> Tensor:
    """Return position * frequency for the first `length` positions."""
    return torch.arange(length, dtype=frequency.dtype, device=frequency.device)[:, None] * frequency


def next_power_of_two(length: int) -> int:
    """Return the next power of two, so that tables grow rarely."""
    return 1 << (length - 1).bit_length()
