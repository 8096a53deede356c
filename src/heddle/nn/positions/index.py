"""Index positions: the position, its fraction of the context, or its binary digits, added to the stream.

They are added to the first channels only: added to all channels alike, they would be gone after the first LayerNorm,
which subtracts the mean.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError, UsageError, part
from heddle.core.shapes import Int, Stream
from heddle.nn.base import Context, Place
from heddle.nn.positions.position import Position, PositionConfig

MAX_DIGITS = 62  # of a position, which is a 64-bit integer


class IndexPositionBase(Position, ABC):
    """x with features of the position added to its first channels."""

    @abstractmethod
    def index_features(self, index: Int[Tensor, "#batch length"], like: Tensor) -> Tensor:
        """Return the features of each position, [batch, length, channels], in the dtype of `like`."""

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        index = torch.arange(x.shape[1], device=x.device)[None] if ctx.positions is None else ctx.positions
        features = self.index_features(index, x)
        return x + F.pad(features, (0, x.shape[2] - features.shape[2])), ctx


@part("index")
class IndexPositionConfig(PositionConfig):
    """Add the index itself: unbounded, and soon larger than all else in the stream."""

    def build(self, width: int, place: Place) -> Position:
        return IndexPosition()


class IndexPosition(IndexPositionBase):
    """x[0] + position."""

    def index_features(self, index: Int[Tensor, "#batch length"], like: Tensor) -> Tensor:
        return index[..., None].to(like.dtype)


@part("normalised_index")
class NormalisedIndexPositionConfig(PositionConfig):
    """Add the index as a fraction of the context: 0 for the first position, 1 for the last of the context.

    A fraction of the row's own length would leak how much follows, and would change as the row grows, which neither a
    causal model nor a KV cache allows. Past the context the fraction exceeds 1.
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
    """Add the index in binary, one digit per channel, the lowest first."""

    def build(self, width: int, place: Place) -> Position:
        if place.context > 1 << min(width, MAX_DIGITS):
            want = f"at least {(place.context - 1).bit_length()}, one channel for each binary digit of the index"
            raise ConfigError("width", want=want, got=width)
        return BinaryIndexPosition(width)


class BinaryIndexPosition(IndexPositionBase):
    """x[i] + digit i of the position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.digits = min(width, MAX_DIGITS)
        self.max_length = 1 << self.digits

    def reserve(self, length: int) -> None:
        if length > 1 << self.digits:
            raise UsageError(f"sequence length {length} exceeds the {1 << self.digits} of {self.digits} binary digits")

    def index_features(self, index: Int[Tensor, "#batch length"], like: Tensor) -> Tensor:
        digit = torch.arange(self.digits, device=index.device)
        return (index[..., None] >> digit & 1).to(like.dtype)
