"""Recall: what attention meets when it goes on from a state, and what it leaves in its cache."""

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
    """What queries may meet (keys and values, say), the context that speaks of it, and the cache that holds it."""

    tensors: tuple[Tensor, ...]
    ctx: Context
    cache: KVCache


def require_state(ctx: Context) -> State:
    """Return the state, or say why there is none to go on from."""
    if ctx.state is None:
        raise ConfigError("ctx.state", want="a state", got=None)
    if ctx.documents is not None:
        raise UsageError("attention goes on from a state within one document: give documents or a state, not both")
    return ctx.state


def update_kv_cache(
    new: tuple[NewVectors, ...], ctx: Context, slot: object, ring: RingBuffer | None = None
) -> CachedKeyValues:
    """Put what new tokens leave beside what is cached; without a slot the tokens are their rows' first."""
    state, length = require_state(ctx), new[0].shape[2]
    cache = slot if isinstance(slot, KVCache) else KVCache.allocate(new, state.capacity, ring, state.cache)
    steps = query_steps(ctx, length, new[0].device)
    kept = _kept(steps, ctx, ring)
    if cache is not slot and length <= state.capacity:  # they meet themselves alone, so that empty room costs nothing
        cache.write(new, steps, kept)
        alone = ctx if ctx.bias is not None else dataclasses.replace(ctx, allowed=None)  # the sight says it all
        return CachedKeyValues(new, _changed(alone, lambda of_keys: of_keys[..., :length]), cache)
    if ring is None or ring.places(state.capacity) == state.capacity:  # a place for every step
        cache.write(new, steps, kept)
        return CachedKeyValues(cache.read(), ctx, cache)
    if length <= 1 + ring.slack:  # no token takes the place of one that is still in some query's window
        cache.write(new, steps, kept)
        return CachedKeyValues(cache.read(), _at(ctx, ring.steps(_after(ctx, length), cache.places), length), cache)
    stands = torch.cat((ring.steps(state.lengths, cache.places), steps.expand(len(state.lengths), -1)), dim=1)
    beside = tuple(torch.cat(pair, dim=2) for pair in zip(cache.read(), new, strict=True))
    cache.write(new, steps, kept)
    return CachedKeyValues(beside, _at(ctx, stands, length), cache)


def _after(ctx: Context, length: int) -> Int[Tensor, " batch"]:
    """Return how many tokens each row has seen when the new ones are read."""
    assert ctx.state is not None
    return ctx.state.lengths + (length if ctx.new is None else ctx.new)


def _kept(steps: Int[Tensor, "#batch new"], ctx: Context, ring: RingBuffer | None) -> Bool[Tensor, "batch new"] | None:
    """Tell which new tokens the cache must keep: real ones, and of more than a ring holds the latest; None: all."""
    length = steps.shape[1]
    real = None if ctx.new is None else torch.arange(length, device=steps.device) < ctx.new[:, None]
    if ring is None or length <= ring.size:
        return real
    late = (steps >= _after(ctx, length)[:, None] - ring.size) | (steps < ring.sinks)
    return late if real is None else late & real


def _at(ctx: Context, steps: Int[Tensor, "batch key"], queries: int) -> Context:
    """Return what the context says of keys that stand at some steps of their rows; below 0 there is no key."""
    assert ctx.state is not None
    room = ctx.state.capacity
    stands = steps.where(steps >= 0, room)  # ahead of every query
    index = stands.clamp(max=room - 1)

    def look_up(of_keys: Tensor) -> Tensor:
        shape = (len(index), *of_keys.shape[1:])
        every = index.view(len(index), *(1,) * (of_keys.dim() - 2), -1)
        return of_keys.expand(shape).gather(-1, every.expand(*shape[:-1], -1))

    moved = dataclasses.replace(_changed(dataclasses.replace(ctx, allowed=None), look_up), keys=stands)
    past = key_distances(moved, queries, index.shape[1], index.device) >= 0
    return dataclasses.replace(moved, allowed=past[:, None])


def _changed(ctx: Context, change: Callable[[Tensor], Tensor]) -> Context:
    """Return a context in which all that speaks of keys, on its last axis, is changed."""
    relation = ctx.relation
    return dataclasses.replace(
        ctx,
        allowed=None if ctx.allowed is None else change(ctx.allowed),
        bias=None if ctx.bias is None else {heads: change(bias) for heads, bias in ctx.bias.items()},
        relation=None if relation is None else dataclasses.replace(relation, index=change(relation.index)),
    )
