"""Rotary embedding (RoPE, Su et al. 2021), and its scaling for longer contexts: linear, NTK, YaRN, Llama 3."""

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from torch import Tensor

from heddle.core import Config, ConfigError, check_at_least, part, within
from heddle.core.shapes import Int, Stream
from heddle.nn.base import Context, Place, Rotation
from heddle.nn.positions.position import (
    Base,
    Position,
    PositionConfig,
    angles,
    frequencies,
    lookup_positions,
    next_power_of_two,
)

Stretch = Annotated[float, within("at least 1", lambda factor: factor >= 1)]  # of positions


class RotaryScalingConfig(Config, ABC):
    """How the frequencies of a trained model are changed for longer contexts."""

    @abstractmethod
    def scale_frequencies(self, frequency: Tensor, base: float) -> Tensor:
        """Return the scaled frequencies, given those of training (the first is 1, the last near 1 / base)."""

    def attention_factor(self) -> float:
        """Return the factor on cosines and sines, whose square multiplies the scores."""
        return 1.0


@part("none")
class NoScalingConfig(RotaryScalingConfig):
    """No scaling."""

    def scale_frequencies(self, frequency: Tensor, base: float) -> Tensor:
        return frequency


@part("linear")
class LinearScalingConfig(RotaryScalingConfig):
    """Position interpolation: all frequencies divided by one factor (Chen et al. 2023).

    factor: how many times longer the context becomes.
    """

    factor: Stretch

    def scale_frequencies(self, frequency: Tensor, base: float) -> Tensor:
        return frequency / self.factor


@part("ntk")
class NTKScalingConfig(RotaryScalingConfig):
    """NTK-aware scaling (bloc97 2023): a larger base, so that the slowest pair is `factor` times slower.

    The factor is fixed. The dynamic form, whose factor follows the length of the row, would rotate cached keys by other
    frequencies than later queries; at length L of a model trained at M it equals this one with
    factor * L / M - (factor - 1).

    factor: how many times slower the slowest pair becomes.
    """

    factor: Stretch

    def scale_frequencies(self, frequency: Tensor, base: float) -> Tensor:
        pairs = len(frequency)
        if pairs == 1:
            raise ConfigError("head_width", want="at least 4, because one pair cannot be fast and slow", got=2)
        steps = torch.arange(pairs, dtype=frequency.dtype, device=frequency.device)
        return frequency * self.factor ** -(steps / (pairs - 1))


@part("yarn")
class YarnScalingConfig(RotaryScalingConfig):
    """YaRN (Peng et al. 2023): slow only pairs that rotate rarely within the trained context, and sharpen scores.

    factor: how many times longer the context becomes.
    original: the context that the model was trained at.
    fast: rotations within it, above which a pair is not scaled.
    slow: rotations below which a pair is slowed by the whole factor.
    attention: the factor on cosines and sines; None: 1 + log(factor) / 10.
    whole: whether the two boundaries are rounded outwards to whole pairs.
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    attention: float | None = None
    whole: bool = True

    def __post_init__(self) -> None:
        check_at_least(1, factor=self.factor)
        check_at_least(1, original=self.original)
        if not 0 < self.slow < self.fast:
            raise ConfigError("slow", want=f"above 0 and below fast = {self.fast}", got=self.slow)

    def scale_frequencies(self, frequency: Tensor, base: float) -> Tensor:
        pairs = len(frequency)
        low, high = self.boundary(self.fast, pairs, base), self.boundary(self.slow, pairs, base)
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        steps = torch.arange(pairs, dtype=frequency.dtype, device=frequency.device)
        slowed = ((steps - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return frequency * (1 - slowed) + frequency / self.factor * slowed

    def boundary(self, rotations: float, pairs: int, base: float) -> float:
        """Return the pair, as a fraction, that rotates this many times within the trained context."""
        return pairs * math.log(self.original / (rotations * 2 * math.pi)) / math.log(base)

    def attention_factor(self) -> float:
        return 1 + 0.1 * math.log(self.factor) if self.attention is None else self.attention


@part("llama3")
class Llama3ScalingConfig(RotaryScalingConfig):
    """Llama 3 scaling (Dubey et al. 2024): slow long wavelengths, keep short ones, interpolate between.

    factor: how many times slower long wavelengths become.
    original: the context that the model was trained at.
    low: wavelengths above original / low are slowed down.
    high: wavelengths below original / high are not.
    """

    factor: float = 8.0
    original: int = 8192
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        check_at_least(1, factor=self.factor)
        check_at_least(1, original=self.original)
        if not 0 < self.low < self.high:
            raise ConfigError("low", want=f"above 0 and below high = {self.high}", got=self.low)

    def scale_frequencies(self, frequency: Tensor, base: float) -> Tensor:
        rotations = self.original * frequency / (2 * math.pi)
        kept = ((rotations - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequency * kept + frequency / self.factor * (1 - kept)


@part("rotary")
class RotaryPositionConfig(PositionConfig):
    """Rotary embedding (RoPE): rotate queries and keys by position, so that scores depend on distance.

    base: the wavelengths grow up to 2π times it (theta of RoPE).
    share: share of each head's width that is rotated, from its start.
    order: a pair is one feature of each half, or two neighbours.
    scaling: how frequencies change for a context longer than the trained one.
    """

    provides = "rotation"

    base: Base = 10_000.0
    share: Annotated[float, within("above 0 and at most 1", lambda share: 0 < share <= 1)] = 1.0
    order: Literal["halves", "interleaved"] = "halves"
    scaling: RotaryScalingConfig = NoScalingConfig()

    def build(self, width: int, place: Place) -> "RotaryPosition":
        rotary_width = None if place.head_width is None else int(place.head_width * self.share)
        if not rotary_width or rotary_width % 2:
            want = "an even number for rotary positions" if self.share == 1 else f"an even number times {self.share}"
            raise ConfigError("head_width", want=want, got=place.head_width)
        return RotaryPosition(rotary_width, place.context, self)


class RotaryPosition(Position):
    """Puts cosines and sines in the context; attention applies them."""

    is_relative = True

    cos: Tensor
    sin: Tensor

    def __init__(self, rotary_width: int, context: int, config: RotaryPositionConfig) -> None:
        super().__init__()
        self.rotary_width, self.config = rotary_width, config
        # tables are buffers: inside a compiled graph they would be computed again in every layer's kernels
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(context, rotary_width // 2), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        if self.cos.is_meta:
            return
        base, scaling = self.config.base, self.config.scaling
        plain = frequencies(self.rotary_width, base, self.cos.device)
        phases = angles(len(self.cos), scaling.scale_frequencies(plain, base))
        self.cos = (phases.cos() * scaling.attention_factor()).to(self.cos.dtype)
        self.sin = (phases.sin() * scaling.attention_factor()).to(self.sin.dtype)

    def reserve(self, length: int) -> None:
        if length > len(self.cos):
            with torch.inference_mode(False):  # a table made while decoding must be usable in training
                self.cos = self.sin = self.cos.new_empty(next_power_of_two(length), self.rotary_width // 2)
                self.reset_buffers()

    def shift(self, places: Int[Tensor, "batch length"], full: bool, dtype: torch.dtype) -> Rotation:
        plain = frequencies(self.rotary_width, self.config.base, places.device)
        phases = places[..., None] * self.config.scaling.scale_frequencies(plain, self.config.base)
        return Rotation(phases.cos().to(dtype), phases.sin().to(dtype))  # cached keys are in halves, whatever the order

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x, dataclasses.replace(ctx, rotation=self.rotation(x, ctx))

    def rotation(self, x: Stream, ctx: Context) -> Rotation:
        """Return the rotation of each position of a stream."""
        cos, sin = (lookup_positions(table, ctx, x.shape[1]).to(x.dtype) for table in (self.cos, self.sin))
        return Rotation(cos, sin, interleaved=self.config.order == "interleaved")


@part("dual_rotary", was="near_far_rotary")
class DualRotaryPositionConfig(PositionConfig):
    """Two rotary embeddings: one for sliding window layers, one, usually slower, for full attention (Gemma 3, 2025).

    near: the embedding in sliding window layers.
    far: the embedding in layers of full attention.
    """

    provides = "rotation"

    near: RotaryPositionConfig = RotaryPositionConfig()
    far: RotaryPositionConfig = RotaryPositionConfig(base=1e6)

    def build(self, width: int, place: Place) -> Position:
        return DualRotaryPosition(self.near.build(width, place), self.far.build(width, place))


class DualRotaryPosition(Position):
    """Puts both in the context; attention uses the one for its mask."""

    is_relative = True

    def __init__(self, near: RotaryPosition, far: RotaryPosition) -> None:
        super().__init__()
        self.near, self.far = near, far

    def reserve(self, length: int) -> None:
        self.near.reserve(length)
        self.far.reserve(length)

    def shift(self, places: Int[Tensor, "batch length"], full: bool, dtype: torch.dtype) -> Rotation:
        return (self.far if full else self.near).shift(places, full, dtype)

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        both = dataclasses.replace(self.far.rotation(x, ctx), window=self.near.rotation(x, ctx))
        return x, dataclasses.replace(ctx, rotation=both)


def apply_rotary(x: Tensor, rotation: Rotation) -> Tensor:
    """Apply a rotary embedding to each pair of features, [batch, heads, length, head_width]; the rest is unchanged.

    Interleaved pairs come out in halves, for queries and keys alike, which changes no score and saves a copy. The
    memory layout stays that of projections, heads within tokens, and so does that of attention's output.
    """
    cos, sin, x = rotation.cos[:, :, None], rotation.sin[:, :, None], x.transpose(1, 2)
    half = cos.shape[-1]
    if rotation.interleaved:
        left, right = x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        left, right = x[..., :half], x[..., half : 2 * half]
    rotated = (left * cos - right * sin, right * cos + left * sin)
    output = torch.cat(rotated if 2 * half == x.shape[-1] else (*rotated, x[..., 2 * half :]), dim=-1)
    return output.transpose(1, 2)
