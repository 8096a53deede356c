"""Index positions: the bare number of a place, its share of the context, or its binary digits, added to the stream.

None of them has weights. A number meets a wide stream in channels of its own, the first ones: added to all channels
alike it would be gone after the first layer norm, which takes the mean away.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError, UsageError, part
from heddle.core.shapes import Int, Stream
from heddle.nn.base import Context, Place
from heddle.nn.positions.position import Position, PositionConfig

MOST_DIGITS = 62  # of a position, which is a 64-bit integer


class IndexPositionBase(Position, ABC):
    """x, with what the index says added to its first channels."""

    @abstractmethod
    def index_features(self, index: Int[Tensor, "#batch length"], like: Tensor) -> Tensor:
        """Return what stands for each index, [batch, length, channels], in the dtype of another tensor."""

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        index = torch.arange(x.shape[1], device=x.device)[None] if ctx.positions is None else ctx.positions
        index_features = self.index_features(index, x)
        return x + F.pad(index_features, (0, x.shape[2] - index_features.shape[2])), ctx


@part("index")
class IndexPositionConfig(PositionConfig):
    """Add the plain index: it has no end, and soon outgrows all else in the stream."""

    def build(self, width: int, place: Place) -> Position:
        return IndexPosition()


class IndexPosition(IndexPositionBase):
    """x[0] + position."""

    def index_features(self, index: Int[Tensor, "#batch length"], like: Tensor) -> Tensor:
        return index[..., None].to(like.dtype)


@part("normalised_index")
class NormalisedIndexPositionConfig(PositionConfig):
    """Add the index as a share of the context: 0 for the first place, 1 for the last that the model is made for.

    A share of the row's own length would tell a token how much is still to come, and would move when the row grows:
    neither a causal model nor a cache could bear it. Past the context the shares go on beyond 1.
    """

    def build(self, width: int, place: Place) -> Position:
        return NormalisedIndexPosition(place.context)


class NormalisedIndexPosition(IndexPositionBase):
    """x[0] + position / (context - 1)."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.last = max(context - 1, 1)

    def index_features(self, index: Int[Tensor, "#batch length"], like: Tensor) -> Tensor:
        exact = torch.float64 if like.dtype is torch.float64 else torch.float32
        return (index[..., None].to(exact) / self.last).to(like.dtype)


@part("binary_index")
class BinaryIndexPositionConfig(PositionConfig):
    """Add the index in binary, one digit a channel, the lowest digit first: longer rows then move nothing."""

    def build(self, width: int, place: Place) -> Position:
        if place.context > 1 << min(width, MOST_DIGITS):
            wish = f"at least {(place.context - 1).bit_length()}, one channel for each digit of the index"
            raise ConfigError("width", want=wish, got=width)
        return BinaryIndexPosition(width)


class BinaryIndexPosition(IndexPositionBase):
    """x[i] + digit i of the position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.digits = min(width, MOST_DIGITS)
        self.max_length = 1 << self.digits

    def reserve(self, length: int) -> None:
        if length > 1 << self.digits:
            raise UsageError(f"length {length} is past what {self.digits} binary digits can number")

    def index_features(self, index: Int[Tensor, "#batch length"], like: Tensor) -> Tensor:
        digit = torch.arange(self.digits, device=index.device)
        return (index[..., None] >> digit & 1).to(like.dtype)
