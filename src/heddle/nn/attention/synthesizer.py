"""Synthesizer (Tay et al. 2020): attention whose scores come from tables or from the query alone, without keys."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, Positive, Share, UsageError, part
from heddle.core.shapes import Stream
from heddle.nn.attention.kv_update import require_state, update_kv_cache
from heddle.nn.attention.projections import head_width_for
from heddle.nn.attention.synthesizer_patterns import (
    Heads,
    PatternConfig,
    QueryKeyPositions,
    RandomPatternConfig,
    SynthesizedScores,
)
from heddle.nn.base import Context, Linear, Module, Place, Role, SelfAttentionConfig, Stateful, upcast
from heddle.nn.layers import causal_mask, clamp_padding, query_steps
from heddle.nn.state import KVCache

CachedHeads = Float[Tensor, "batch heads key head_width"]  # of this row, or of the whole KV cache


# --- blends of synthesized scores and dot products --------------------------------------------------------------------


class BlendConfig(Config, ABC):
    """How synthesized scores combine with the dot products of queries and keys."""

    @abstractmethod
    def build(self) -> "Blend | None":
        """Build the module; None: there are no keys."""


class Blend(Module, ABC):
    """A module: dot products and synthesized scores -> scores."""

    @abstractmethod
    def forward(self, dot_scores: SynthesizedScores, synthesized: SynthesizedScores) -> SynthesizedScores:
        """Return the scores."""


@part("alone")
class AloneConfig(BlendConfig):
    """Synthesized scores only."""

    def build(self) -> Blend | None:
        return None


@part("plus")
class PlusConfig(BlendConfig):
    """The sum of both."""

    def build(self) -> Blend | None:
        return Plus()


class Plus(Blend):
    """dot_scores + synthesized."""

    def forward(self, dot_scores: SynthesizedScores, synthesized: SynthesizedScores) -> SynthesizedScores:
        return dot_scores + synthesized


@part("alpha")
class AlphaConfig(BlendConfig):
    """A weighted mean of both, with one learned weight; equal at first."""

    def build(self) -> Blend | None:
        return Alpha()


class Alpha(Blend):
    """(1 - share) * dot_scores + share * synthesized, share = sigmoid(alpha)."""

    roles = {"alpha": Role.BIAS}

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1))

    def forward(self, dot_scores: SynthesizedScores, synthesized: SynthesizedScores) -> SynthesizedScores:
        share = self.alpha.sigmoid()
        return (1 - share) * dot_scores + share * synthesized


# --- the mixer --------------------------------------------------------------------------------------------------------


@part("synthesizer")
class SynthesizerConfig(SelfAttentionConfig):
    """Attention with scores from a pattern, alone or blended with those of queries and keys.

    heads: how many attention heads.
    head_width: width of each head; None: width / heads.
    pattern: where the synthesized scores come from.
    blend: how they are combined with the scores of queries and keys.
    dropout: attention dropout: rate on the softmax weights.
    """

    accepts = frozenset({"stream", "bias"})

    heads: Positive
    head_width: Positive | None = None
    pattern: PatternConfig = RandomPatternConfig()
    blend: BlendConfig = AloneConfig()
    dropout: Share = 0.0

    def head_width_at(self, width: int) -> int:
        """Return each head's width in a stream of this width."""
        return head_width_for(self, width)

    def build(self, width: int, place: Place) -> "Synthesizer":
        return Synthesizer(width, self, place)


class Synthesizer(Stateful):
    """output(softmax(blend(query · key / sqrt(head_width), pattern)) · value); unused projections are left out."""

    def __init__(self, width: int, config: SynthesizerConfig, place: Place) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width_at(width)
        self.dropout, self.sight, self.max_length = config.dropout, place.sight, place.context
        self.pattern = config.pattern.build(self.heads, self.head_width, place.context)
        self.blend = config.blend.build()
        inner = self.heads * self.head_width
        self.query = Linear(width, inner) if self.pattern.reads_query or self.blend is not None else None
        self.key = Linear(width, inner) if self.blend is not None else None
        self.value = Linear(width, inner)
        self.output = Linear(inner, width, role=Role.INTO_STREAM)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        length = x.shape[1]
        self.check(length)
        positions = QueryKeyPositions(ctx.positions, ctx.positions, (length, length))
        return self.attend(x, self.value_and_key(x), positions, ctx)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, KVCache]:
        """Attend over the KV cache and the new tokens."""
        self.check(require_state(ctx).capacity)
        cached, steps = update_kv_cache(self.value_and_key(x), ctx, slot), query_steps(ctx, x.shape[1], x.device)
        positions = QueryKeyPositions(clamp_padding(steps, ctx, at=0), None, (x.shape[1], cached.tensors[0].shape[2]))
        return self.attend(x, cached.tensors, positions, cached.ctx), cached.cache

    def check(self, length: int) -> None:
        """Refuse rows that are longer than the tables."""
        if self.max_length is not None and length > self.max_length:
            raise UsageError(f"sequence length {length} exceeds the model's context of {self.max_length}")

    def value_and_key(self, x: Stream) -> tuple[Heads, ...]:
        """Return values, and keys where the blend needs them."""
        return tuple(self.split_heads(linear(x)) for linear in (self.value, self.key) if linear is not None)

    def split_heads(self, x: Float[Tensor, "batch length inner"]) -> Heads:
        """Return [batch, heads, length, head_width]."""
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)  # type: ignore[no-any-return]

    def attention_weights(self, x: Stream, ctx: Context) -> SynthesizedScores:
        """Return the attention weights, [batch, heads, query, key]."""
        length = x.shape[1]
        positions = QueryKeyPositions(ctx.positions, ctx.positions, (length, length))
        return self.softmax_weights(x, self.value_and_key(x), positions, ctx)

    def attend(
        self, x: Stream, value_and_key: tuple[CachedHeads, ...], positions: QueryKeyPositions, ctx: Context
    ) -> Stream:
        """Return the output projection of the values, weighed by the softmax of the scores."""
        weights = F.dropout(self.softmax_weights(x, value_and_key, positions, ctx), self.dropout, self.training)
        return self.output((weights @ value_and_key[0]).transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def softmax_weights(
        self, x: Stream, value_and_key: tuple[CachedHeads, ...], positions: QueryKeyPositions, ctx: Context
    ) -> SynthesizedScores:
        """Return the softmax of the scores, masked."""
        scores = self.scores(x, value_and_key[1:], positions)
        if ctx.bias is not None:
            scores = scores + ctx.bias[self.heads]
        allowed = ctx.allowed
        if allowed is None and self.sight == "past":
            allowed = causal_mask(positions.counts[0], x.device)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return scores.softmax(-1).to(x.dtype)

    def scores(self, x: Stream, keys: tuple[CachedHeads, ...], positions: QueryKeyPositions) -> SynthesizedScores:
        """Return synthesized scores, blended with dot products where the blend needs them."""
        query = None if self.query is None else self.split_heads(self.query(x)) * self.head_width**-0.5
        synthesized: SynthesizedScores = upcast(self.pattern(query, positions))
        if query is None or self.blend is None:
            return synthesized
        return self.blend(upcast(query @ keys[0].transpose(-1, -2)), synthesized)  # type: ignore[no-any-return]

    def mixing_flops(self, length: int) -> int:
        products = 1 if self.key is None else 2
        return 2 * products * length * self.heads * self.head_width

    def state_elements(self) -> int:
        return (1 if self.key is None else 2) * self.heads * self.head_width
