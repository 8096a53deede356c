"""Attention masks: causal, prefix LM, packed documents, sliding window, padding and the KV cache."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from heddle.core import Config, Count, Positive, part
from heddle.core.shapes import Allowed
from heddle.nn.base import Context, Sight
from heddle.nn.state import RingBuffer


class MaskConfig(Config, ABC):
    """Which keys attention may see, beyond what causality and documents mask."""

    is_full: ClassVar[bool] = False  # whether it masks nothing

    @abstractmethod
    def restrict(
        self, allowed: Allowed | None, distance: Int[Tensor, "#batch query key"], place: Int[Tensor, "#batch key"]
    ) -> Allowed | None:
        """Return what remains allowed, from each key's distance to the query and its position in its document."""

    @abstractmethod
    def keys_per_query(self, length: int) -> int:
        """Return how many keys a query of a row of this length sees, not counting causality."""

    def ring(self) -> RingBuffer | None:
        """Return the ring buffer that the KV cache needs; None: it keeps all tokens."""
        return None


@part("full", was="whole")
class FullMaskConfig(MaskConfig):
    """Full attention: no mask beyond causality and documents."""

    is_full = True

    def restrict(
        self, allowed: Allowed | None, distance: Int[Tensor, "#batch query key"], place: Int[Tensor, "#batch key"]
    ) -> Allowed | None:
        return allowed

    def keys_per_query(self, length: int) -> int:
        return length


@part("window")
class SlidingWindowConfig(MaskConfig):
    """Sliding window: the nearest `size` positions only, itself included (Child 2019; Beltagy 2020).

    size: positions that each one sees, itself included.
    sinks: attention sinks: first positions of a document, seen by all (Xiao et al. 2023).
    """

    size: Positive
    sinks: Count = 0

    def restrict(
        self, allowed: Allowed | None, distance: Int[Tensor, "#batch query key"], place: Int[Tensor, "#batch key"]
    ) -> Allowed | None:
        within = distance.abs() < self.size
        if self.sinks:
            within = within | (place < self.sinks)[:, None]
        return within[:, None] if allowed is None else allowed & within[:, None]

    def keys_per_query(self, length: int) -> int:
        return min(length, self.size + self.sinks)

    def ring(self) -> RingBuffer | None:
        return RingBuffer.for_window(self.size, self.sinks)


def query_steps(ctx: Context, length: int, device: torch.device) -> Int[Tensor, "#batch length"]:
    """Return the step of each query on the key axis: after the cached tokens, or 0, 1, 2, ..."""
    steps = torch.arange(length, device=device)[None]
    return steps if ctx.state is None else ctx.state.lengths[:, None] + steps


def clamp_padding(steps: Int[Tensor, "#batch length"], ctx: Context, at: int) -> Int[Tensor, "#batch length"]:
    """Return the steps with those of padding set to one index, so that they stay in range."""
    if ctx.lengths is None:
        return steps
    order = torch.arange(steps.shape[1], device=steps.device)
    return steps.where(order < ctx.lengths[:, None], at)


def key_distances(ctx: Context, queries: int, keys: int, device: torch.device) -> Int[Tensor, "#batch query key"]:
    """Return how many positions each key is before each query."""
    key_steps = torch.arange(keys, device=device)[None] if ctx.key_steps is None else ctx.key_steps
    return query_steps(ctx, queries, device)[:, :, None] - key_steps[:, None]


def document_positions(ctx: Context, keys: int, device: torch.device) -> Int[Tensor, "#batch key"]:
    """Return each key's position in its document, from 0."""
    order = torch.arange(keys, device=device)[None] if ctx.key_steps is None else ctx.key_steps
    if ctx.documents is None:
        return order
    starts = torch.ones_like(ctx.documents, dtype=torch.bool)
    starts[:, 1:] = ctx.documents[:, 1:] != ctx.documents[:, :-1]
    return order - order.where(starts, 0).cummax(dim=1).values


def base_mask(ctx: Context, length: int, sight: Sight, device: torch.device) -> Allowed | None:
    """Return the mask of documents, padding and cache, with causality; None where causality is all of it."""
    if ctx.state is not None:
        return (key_distances(ctx, length, ctx.state.capacity, device) >= 0)[:, None]
    if ctx.prefix is not None:
        return _prefix_mask(ctx.prefix, ctx, length, device)
    if ctx.documents is None:
        if ctx.lengths is None or sight == "past":  # padding is on the right, where causality masks it
            return None
        return (torch.arange(length, device=device) < ctx.lengths[:, None])[:, None, None]
    allowed = (ctx.documents[:, :, None] == ctx.documents[:, None, :])[:, None]
    return allowed if sight == "all" else allowed & causal_mask(length, device)


def _prefix_mask(prefix: Bool[Tensor, "batch length"], ctx: Context, length: int, device: torch.device) -> Allowed:
    """Return the causal mask in which the prefix of a document is seen whole (prefix LM); for attention alone."""
    allowed = causal_mask(length, device) | prefix[:, None, None]
    if ctx.documents is None:
        return allowed
    return allowed & (ctx.documents[:, :, None] == ctx.documents[:, None, :])[:, None]


def causal_mask(length: int, device: torch.device) -> Allowed:
    """Return the causal mask: position i sees j when j <= i."""
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()


def allowed_keys(mask: MaskConfig, sight: Sight, ctx: Context, queries: int, key: Tensor) -> Allowed | None:
    """Return the mask of attention for this many queries; None where kernels need only know that it is causal."""
    if mask.is_full:
        return ctx.allowed
    base, keys = ctx.allowed, key.shape[2]
    if base is None and sight == "past":
        base = causal_mask(queries, key.device)
    return mask.restrict(base, key_distances(ctx, queries, keys, key.device), document_positions(ctx, keys, key.device))
