"""Relative positions: vectors by distance (Shaw 2018), T5's bucketed bias (Raffel 2020), ALiBi (Press 2022).

Documents of a packed row are contiguous, so a distance within a document is a distance within the row.
"""

import dataclasses
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from heddle.core import ConfigError, Positive, part
from heddle.core.shapes import Float, Int, Stream
from heddle.nn.base import Context, InitialValues, Place, Relation, Role, Sight
from heddle.nn.layers import key_distances
from heddle.nn.positions.position import Position, PositionConfig


@part("relative")
class RelativePositionConfig(PositionConfig):
    """Relative position representations (Shaw et al. 2018): learned vectors by distance for keys and values.

    clip: larger distances are treated as this one.
    """

    provides = "relation"

    clip: Positive = 16

    def build(self, width: int, place: Place) -> Position:
        if place.head_width is None:
            raise ConfigError("position", want="none, or attention in the plan", got=self.kind)
        return RelativePosition(place.head_width, self.clip, place)


class RelativePosition(Position):
    """Puts both tables and the distances in the context, where attention looks them up."""

    is_relative = True
    roles = {"keys": Role.EMBEDDING, "values": Role.EMBEDDING}

    def __init__(self, head_width: int, clip: int, place: Place) -> None:
        super().__init__()
        self.clip, self.nearest = clip, 0 if place.sight == "past" else -clip  # a causal model sees no key ahead
        shape = (place.depth, clip - self.nearest + 1, head_width)
        self.keys, self.values = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.pairs = sum(place.heads) * shape[1]

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        index = key_distances(ctx, x.shape[1], _keys(x, ctx), x.device).clamp(self.nearest, self.clip) - self.nearest
        keys, values = self.keys.to(x.dtype), self.values.to(x.dtype)
        return x, dataclasses.replace(ctx, relation=Relation(keys, values, index))

    def mixing_flops(self, length: int) -> int:
        layers, _, head_width = self.keys.shape
        return 4 * layers * self.pairs * head_width


class AttentionBias(Position, ABC):
    """Attention bias: a number for every head, query and key, added to the scores of all layers.

    Where causality is the only mask (`ctx.allowed` is None), the bias is -inf in the future, which masks it.
    """

    is_relative = True

    def __init__(self, heads: tuple[int, ...], sight: Sight) -> None:
        super().__init__()
        self.heads, self.sight = heads, sight

    @abstractmethod
    def at(self, heads: int, ahead: Int[Tensor, "*shape"]) -> Float[Tensor, "heads *shape"]:
        """Return each head's bias for keys this many positions ahead of the query (negative: behind it)."""

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        return x, dataclasses.replace(ctx, bias={heads: self.bias(heads, x, ctx) for heads in self.heads})

    def bias(self, heads: int, x: Stream, ctx: Context) -> Float[Tensor, "#batch heads query key"]:
        """Return the bias for every query and key."""
        length = x.shape[1]
        if ctx.state is not None:
            ahead = -key_distances(ctx, length, ctx.state.capacity, x.device)
            return self.at(heads, ahead).transpose(0, 1).to(x.dtype)
        ahead = torch.arange(1 - length, length, device=x.device)
        numbers = self.at(heads, ahead).to(x.dtype)
        if self.sight == "past" and ctx.allowed is None:
            numbers = numbers.masked_fill(ahead > 0, -math.inf)
        # a view of the numbers by distance, shifted by one for each query: no gather, and no scatter in the backward
        return numbers.unfold(-1, length, 1).flip(-2)[None]


@part("t5")
class T5PositionConfig(PositionConfig):
    """T5 relative bias (Raffel et al. 2020): a learned number for each small distance and each range of large ones.

    buckets: how many learned numbers each head has, for both directions together.
    farthest: distances from here on share a bucket.
    """

    provides = "bias"

    buckets: int = 32
    farthest: int = 128

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 4:
            raise ConfigError("buckets", want="a multiple of 4", got=self.buckets)
        if self.farthest <= self.buckets // 2:
            raise ConfigError("farthest", want=f"above half the buckets, {self.buckets // 2}", got=self.farthest)

    def build(self, width: int, place: Place) -> Position:
        return T5Position(width, self, place)


class T5Position(AttentionBias):
    """bias[head, query, key] = weight[head, bucket(key - query)]; one table for each number of heads in the stack."""

    table: Tensor

    def __init__(self, width: int, config: T5PositionConfig, place: Place) -> None:
        super().__init__(place.heads, place.sight)
        self.buckets, self.farthest = config.buckets, config.farthest
        names = [f"heads_{heads}" for heads in place.heads]
        for name, heads in zip(names, place.heads, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(heads, config.buckets)))
        self.roles = dict.fromkeys(names, Role.EMBEDDING)
        self.initial_values = dict.fromkeys(names, InitialValues(scale=width**-0.5))
        self.register_buffer("table", torch.empty(2 * config.farthest + 1, dtype=torch.long), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        # on the CPU, wherever the model is: a logarithm that rounds differently would move a boundary
        ahead = torch.arange(-self.farthest, self.farthest + 1, device="cpu")
        self.table = relative_bucket(ahead, self.buckets, self.farthest, self.sight).to(self.table.device)

    def at(self, heads: int, ahead: Int[Tensor, "*shape"]) -> Float[Tensor, "heads *shape"]:
        index = self.table[ahead.clamp(-self.farthest, self.farthest) + self.farthest]
        return self.get_parameter(f"heads_{heads}")[:, index]


def relative_bucket(ahead: Int[Tensor, "*shape"], buckets: int, farthest: int, sight: Sight) -> Int[Tensor, "*shape"]:
    """Return the bucket of keys this many positions ahead: half of the buckets exact, half logarithmic."""
    first: Tensor | int = 0
    if sight == "all":
        buckets //= 2
        first = (ahead > 0).long() * buckets
        distance = ahead.abs()
    else:
        distance = (-ahead).clamp(min=0)
    exact = buckets // 2
    far = torch.log(distance.float().clamp(min=1) / exact) / math.log(farthest / exact) * (buckets - exact)
    return first + torch.where(distance < exact, distance, (exact + far.long()).clamp(max=buckets - 1))


@part("alibi")
class AlibiPositionConfig(PositionConfig):
    """ALiBi (Press et al. 2022): subtract distance * slope from each score, a fixed slope for each head."""

    provides = "bias"

    def build(self, width: int, place: Place) -> Position:
        return AlibiPosition(place.heads, place.sight)


class AlibiPosition(AttentionBias):
    """bias[head, query, key] = -slope[head] * |key - query|."""

    def __init__(self, heads: tuple[int, ...], sight: Sight) -> None:
        super().__init__(heads, sight)
        for count in heads:
            self.register_buffer(f"slopes_{count}", torch.empty(count), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        for count in self.heads:
            old = self.get_buffer(f"slopes_{count}")
            self.register_buffer(f"slopes_{count}", alibi_slopes(count, old.device).to(old.dtype), persistent=False)

    def at(self, heads: int, ahead: Int[Tensor, "*shape"]) -> Float[Tensor, "heads *shape"]:
        slope = self.get_buffer(f"slopes_{heads}")
        return -slope.view(-1, *(1,) * ahead.dim()) * ahead.abs()


def alibi_slopes(heads: int, device: torch.device) -> Float[Tensor, " heads"]:
    """Return ALiBi's slopes 2^(-8/n), 2^(-16/n), ... for n heads; past a power of two, every other one of the next."""
    power = 1 << (heads.bit_length() - 1)
    exponents = [8 * (i + 1) / power for i in range(power)]
    exponents += [4 * (2 * i + 1) / power for i in range(heads - power)]
    return 2.0 ** -torch.tensor(exponents, dtype=torch.float64, device=device)


def _keys(x: Stream, ctx: Context) -> int:
    """Return how many keys a query may see: those of the row, or the capacity of the KV cache."""
    return x.shape[1] if ctx.state is None else ctx.state.capacity
