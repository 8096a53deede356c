"""KV cache in attention: write the new keys and values, and return those that the queries attend to."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import ConfigError, UsageError
from heddle.core.shapes import Bool
from heddle.nn.base import Context
from heddle.nn.layers import key_distances, query_steps
from heddle.nn.state import KVCache, NewVectors, RingBuffer, State


@dataclass(frozen=True)
class CachedKeyValues:
    """Cached and new tensors (keys and values, say), the context for them, and the cache that holds them."""

    tensors: tuple[Tensor, ...]
    ctx: Context
    cache: KVCache


def require_state(ctx: Context) -> State:
    """Return the state to continue from, or refuse."""
    if ctx.state is None:
        raise ConfigError("ctx.state", want="a state", got=None)
    if ctx.documents is not None:
        raise UsageError("attention with a KV cache reads one document per row: give documents or a state, not both")
    return ctx.state


def update_kv_cache(
    new: tuple[NewVectors, ...], ctx: Context, slot: object, ring: RingBuffer | None = None
) -> CachedKeyValues:
    """Write new tensors to the KV cache; return what new queries attend to; without a slot, tokens are the first."""
    state, length = require_state(ctx), new[0].shape[2]
    cache = slot if isinstance(slot, KVCache) else KVCache.allocate(new, state.capacity, ring, state.cache)
    steps = query_steps(ctx, length, new[0].device)
    keep = _tokens_to_keep(steps, ctx, ring)
    if cache is not slot and length <= state.capacity:  # prefill: tokens attend to each other, not to unused capacity
        cache.write(new, steps, keep)
        causal = ctx if ctx.bias is not None else dataclasses.replace(ctx, allowed=None)  # causality is the mask
        return CachedKeyValues(new, _map_key_axis(causal, lambda per_key: per_key[..., :length]), cache)
    if ring is None or ring.cache_size(state.capacity) == state.capacity:  # every token has its own place
        cache.write(new, steps, keep)
        return CachedKeyValues(cache.read(), ctx, cache)
    if length <= 1 + ring.slack:  # no new token overwrites one that is in a query's window
        cache.write(new, steps, keep)
        after = ring.steps(_lengths_after(ctx, length), cache.size)
        return CachedKeyValues(cache.read(), _context_at(ctx, after, length), cache)
    key_steps = torch.cat((ring.steps(state.lengths, cache.size), steps.expand(len(state.lengths), -1)), dim=1)
    tensors = tuple(torch.cat(pair, dim=2) for pair in zip(cache.read(), new, strict=True))
    cache.write(new, steps, keep)
    return CachedKeyValues(tensors, _context_at(ctx, key_steps, length), cache)


def _lengths_after(ctx: Context, length: int) -> Int[Tensor, " batch"]:
    """Return the length of each row with the new tokens."""
    assert ctx.state is not None
    return ctx.state.lengths + (length if ctx.lengths is None else ctx.lengths)


def _tokens_to_keep(
    steps: Int[Tensor, "#batch new"], ctx: Context, ring: RingBuffer | None
) -> Bool[Tensor, "batch new"] | None:
    """Return which new tokens the cache must keep: not padding, and no more than fit in the ring; None: all."""
    length = steps.shape[1]
    real = None if ctx.lengths is None else torch.arange(length, device=steps.device) < ctx.lengths[:, None]
    if ring is None or length <= ring.size:
        return real
    recent = (steps >= _lengths_after(ctx, length)[:, None] - ring.size) | (steps < ring.sinks)
    return recent if real is None else recent & real


def _context_at(ctx: Context, steps: Int[Tensor, "batch key"], queries: int) -> Context:
    """Return the context for keys at some steps of their rows; a step below 0 holds no key."""
    assert ctx.state is not None
    capacity = ctx.state.capacity
    key_steps = steps.where(steps >= 0, capacity)  # ahead of every query
    index = key_steps.clamp(max=capacity - 1)

    def gather(per_key: Tensor) -> Tensor:
        shape = (len(index), *per_key.shape[1:])
        every = index.view(len(index), *(1,) * (per_key.dim() - 2), -1)
        return per_key.expand(shape).gather(-1, every.expand(*shape[:-1], -1))

    moved = dataclasses.replace(_map_key_axis(dataclasses.replace(ctx, allowed=None), gather), key_steps=key_steps)
    past = key_distances(moved, queries, index.shape[1], index.device) >= 0
    return dataclasses.replace(moved, allowed=past[:, None])


def _map_key_axis(ctx: Context, change: Callable[[Tensor], Tensor]) -> Context:
    """Return the context with all tensors changed whose last axis is the keys."""
    relation = ctx.relation
    return dataclasses.replace(
        ctx,
        allowed=None if ctx.allowed is None else change(ctx.allowed),
        bias=None if ctx.bias is None else {heads: change(bias) for heads, bias in ctx.bias.items()},
        relation=None if relation is None else dataclasses.replace(relation, index=change(relation.index)),
    )
