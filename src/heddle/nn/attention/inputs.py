"""Attention inputs: queries, keys and values, and all that decides which keys count and by how much."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core.shapes import Allowed, Float, Int
from heddle.nn.attention.flex_attention import FlexMask
from heddle.nn.attention.sliding_window import SlidingWindow
from heddle.nn.base import upcast
from heddle.nn.layers import causal_mask

Scores = Float[Tensor, "batch heads query key"]
WarmupWindow = Int[Tensor, ""]  # positions, itself included; a tensor, so that one compiled step serves every size


@dataclass(frozen=True)
class RelativeTerms:
    """Relative position representations (Shaw et al. 2018): one layer's vectors for each clipped distance."""

    keys: Float[Tensor, "distances head_width"]
    values: Float[Tensor, "distances head_width"]
    index: Int[Tensor, "#batch query key"]

    def key_scores(self, query: Tensor) -> Scores:
        """Return query · keys[distance] for every query and key."""
        by_distance = upcast(query @ self.keys.T)  # its gradient is a sum over many keys
        return by_distance.gather(-1, self.index[:, None].expand(*query.shape[:2], -1, -1))

    def weighted_values(self, weights: Scores) -> Tensor:
        """Return the sum over keys of weight * values[distance]."""
        batch, heads, queries, _ = weights.shape
        precise = upcast(weights)  # many distant keys share one distance: half precision would lose the small ones
        by_distance = precise.new_zeros(batch, heads, queries, len(self.values))
        index = self.index[:, None].expand_as(weights)
        return by_distance.scatter_add(-1, index, precise).to(weights.dtype) @ self.values


@dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values with mask and bias; in grouped-query attention keys and values have fewer heads.

    `allowed`, `causal` and `build_mask` say as a matrix which keys a query sees. `flex_mask`, `sliding_window` and
    `cache_lengths` say the same in the form of a backend, or are None where that backend cannot compute it.
    """

    query: Float[Tensor, "batch heads query head_width"]
    key: Float[Tensor, "batch kv_heads key head_width"]
    value: Float[Tensor, "batch kv_heads key value_width"]
    allowed: Allowed | None = None  # None: `causal` decides
    causal: bool = False  # with no `allowed`: a query sees the keys up to its own position
    bias: Float[Tensor, "#batch heads query key"] | None = None  # with no `allowed` it is -inf where causality forbids
    relation: RelativeTerms | None = None
    build_mask: Callable[[], Allowed | None] | None = None  # makes `allowed`, for backends that need the matrix
    flex_mask: FlexMask | None = None
    sliding_window: SlidingWindow | None = None
    cache_lengths: Int[Tensor, " batch"] | None = None  # tokens of each row that the KV cache held before this one

    @property
    def groups(self) -> int:
        """Count the query heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    def with_mask(self) -> "AttentionInputs":
        """Return the inputs with the mask as a matrix."""
        if self.build_mask is None:
            return self
        return dataclasses.replace(self, allowed=self.build_mask(), build_mask=None)

    def in_window(self, window: WarmupWindow) -> "AttentionInputs":
        """Return self-attention whose queries see only keys less than `window` positions away (window warm-up)."""
        length, device = self.query.shape[2], self.query.device
        position = torch.arange(length, device=device)
        allowed = ((position[:, None] - position).abs() < window)[None, None]
        if self.allowed is not None:
            allowed = allowed & self.allowed
        elif self.causal:
            allowed = allowed & causal_mask(length, device)
        flex_mask = None if self.flex_mask is None else dataclasses.replace(self.flex_mask, window=window)
        return dataclasses.replace(self, allowed=allowed, flex_mask=flex_mask)

    def repeat_kv(self) -> "AttentionInputs":
        """Return the inputs with a key and value head for each query head."""
        if self.groups == 1:
            return self
        key, value = (t.repeat_interleave(self.groups, dim=1) for t in (self.key, self.value))
        return dataclasses.replace(self, key=key, value=value)

    def apply_bias_and_mask(self, scores: Scores) -> Scores:
        """Return the scores with the bias added, and the smallest number where a key is masked."""
        if self.bias is not None:
            scores = upcast(scores) + self.bias
        if self.allowed is not None:
            return scores.masked_fill(~self.allowed, torch.finfo(scores.dtype).min)
        if self.causal and self.bias is None:
            past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            return scores.masked_fill(~past, torch.finfo(scores.dtype).min)
        return scores

    def weigh_values(self, weights: Scores) -> Tensor:
        """Return the sum of the values by the attention weights, [batch, heads, query, value_width]."""
        output = weights @ self.repeat_kv().value
        return output if self.relation is None else output + self.relation.weighted_values(weights)
