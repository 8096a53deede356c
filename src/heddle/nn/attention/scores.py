"""Scores: how well a query and a key fit (dot product, Vaswani 2017; additive, Bahdanau 2014; general, Luong 2015).

A softmax over the keys turns scores into weights, by which the values are mixed: by the fused kernel, or written out.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, ConfigError, part
from heddle.core.shapes import Allowed, Float, Int
from heddle.nn.attention.flex_attention import FlexMask, flex_attend, flex_available
from heddle.nn.base import InitialValues, Module, Role, upcast
from heddle.nn.layers import apply_softcap

MAX_UNFUSED_KEYS = 512  # keys; beyond, whole score matrices cost more than they save
Scores = Float[Tensor, "batch heads query key"]


@dataclass(frozen=True)
class RelativeTerms:
    """One layer's vectors for each clipped distance (Shaw et al. 2018)."""

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
        softmax_weights = upcast(
            weights
        )  # many far keys fall into one distance: half precision would lose the small ones
        by_distance = softmax_weights.new_zeros(batch, heads, queries, len(self.values))
        index = self.index[:, None].expand_as(weights)
        return by_distance.scatter_add(-1, index, softmax_weights).to(weights.dtype) @ self.values


@dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values, and what lies between them; keys and values may have fewer heads, shared by groups."""

    query: Float[Tensor, "batch heads query head_width"]
    key: Float[Tensor, "batch kv_heads key head_width"]
    value: Float[Tensor, "batch kv_heads key value_width"]
    allowed: Allowed | None = None  # None: `causal` decides
    causal: bool = False  # with no `allowed`: a query sees what stands no later than itself
    bias: Float[Tensor, "#batch heads query key"] | None = None  # with no `allowed` it is -inf where causality forbids
    relation: RelativeTerms | None = None
    flex_mask: FlexMask | None = None  # what `allowed` and `causal` say, as a rule; None: they say what no rule does

    @property
    def groups(self) -> int:
        """Count the query heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    def repeat_kv(self) -> "AttentionInputs":
        """Return the meeting with a key and value head for each query head."""
        if self.groups == 1:
            return self
        key, value = (t.repeat_interleave(self.groups, dim=1) for t in (self.key, self.value))
        return dataclasses.replace(self, key=key, value=value)

    def apply_bias_and_mask(self, scores: Scores) -> Scores:
        """Return the scores with the bias added, and without what is not allowed."""
        if self.bias is not None:
            scores = upcast(scores) + self.bias
        if self.allowed is not None:
            return scores.masked_fill(~self.allowed, torch.finfo(scores.dtype).min)
        if self.causal and self.bias is None:
            past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            return scores.masked_fill(~past, torch.finfo(scores.dtype).min)
        return scores

    def weigh_values(self, weights: Scores) -> Tensor:
        """Return the values mixed by the weights, [batch, heads, query, value_width]."""
        output = weights @ self.repeat_kv().value
        return output if self.relation is None else output + self.relation.weighted_values(weights)


class ScoreConfig(Config, ABC):
    """How a query and a key are compared."""

    def supports_rotary(self) -> bool:
        """Tell whether queries and keys turned by rotary positions are compared by distance alone."""
        return True

    @abstractmethod
    def build(self, heads: int, head_width: int) -> "Score":
        """Build the module for so many heads of this width."""


class Score(Module, ABC):
    """A module: meeting -> scores. `weights` and `mix` go on from there."""

    @abstractmethod
    def forward(self, inputs: AttentionInputs) -> Scores:
        """Compare every query with every key; bias and mask come later."""

    def softmax_scores(self, scores: Scores) -> Scores:
        """Turn scores into weights."""
        return scores.softmax(-1)

    def softmax_weights(self, inputs: AttentionInputs) -> Scores:
        """Return the weights of every query that may see something."""
        return self.softmax_scores(upcast(inputs.apply_bias_and_mask(self(inputs)))).to(inputs.query.dtype)

    def attention_weights(self, inputs: AttentionInputs) -> Scores:
        """Return how much each query takes from each key; nothing at all where nothing is allowed."""
        softmax_weights = self.softmax_weights(inputs)
        return softmax_weights if inputs.allowed is None else softmax_weights.masked_fill(~inputs.allowed, 0)

    def attend(self, inputs: AttentionInputs, dropout: float = 0.0) -> Float[Tensor, "batch heads query value_width"]:
        """Mix the values by the weights, some of which are dropped."""
        output = inputs.weigh_values(F.dropout(self.softmax_weights(inputs), dropout, training=dropout > 0))
        if inputs.allowed is None:
            return output
        return output.masked_fill(~inputs.allowed.any(-1, keepdim=True), 0)  # cheaper than the same on the weights

    def query_init_scale(self) -> float:
        """Return what a query's first values are multiplied by, so that scores begin as if they were scaled."""
        return 1.0

    def flops(self) -> int:
        """Count what one query and one key cost in each head, beyond the mixing."""
        return 0


@part("dot")
class DotScoreConfig(ScoreConfig):
    """Multiply query and key."""

    scale: float | None = None  # None: 1 / sqrt(head_width)
    softcap: float | None = None  # bends scores into (-softcap, softcap) (Gemma 2)

    def __post_init__(self) -> None:
        if self.softcap is not None and self.softcap <= 0:
            raise ConfigError("softcap", want="above 0", got=self.softcap)

    def build(self, heads: int, head_width: int) -> "ScaledDotProduct":
        scale = 1 / math.sqrt(head_width) if self.scale is None else self.scale
        return ScaledDotProduct(head_width, scale, self.softcap)


class ScaledDotProduct(Score):
    """query · key * scale."""

    def __init__(self, head_width: int, scale: float, softcap: float | None = None) -> None:
        super().__init__()
        self.head_width, self.scale, self.softcap = head_width, scale, softcap

    def forward(self, inputs: AttentionInputs) -> Scores:
        query = inputs.query * self.scale
        scores = query @ inputs.repeat_kv().key.transpose(-1, -2)
        if inputs.relation is not None:
            scores = scores + inputs.relation.key_scores(query)
        return apply_softcap(scores, self.softcap)

    def attend(self, inputs: AttentionInputs, dropout: float = 0.0) -> Float[Tensor, "batch heads query value_width"]:
        """Mix by the fused kernel where it can and is faster, and by blocks where a rule says which can be skipped.

        On a CPU in half precision, short rows were measured faster written out (decision 0009).
        """
        flex_mask = inputs.flex_mask
        if flex_mask is not None and self._by_blocks(inputs, flex_mask, dropout):
            return flex_attend(inputs.query, inputs.key, inputs.value, flex_mask, self.scale, self.softcap)
        query, keys = inputs.query, inputs.key.shape[-2]
        short = query.is_cpu and query.dtype is torch.bfloat16 and keys <= MAX_UNFUSED_KEYS and query.shape[-2] > 1
        if short or self.softcap is not None or inputs.relation is not None:
            return super().attend(inputs, dropout)
        return fused(inputs, self.scale, dropout)

    def _by_blocks(self, inputs: AttentionInputs, flex_mask: FlexMask, dropout: float) -> bool:
        if dropout or inputs.bias is not None or inputs.relation is not None:
            return False
        return (flex_mask.restricts or self.softcap is not None) and flex_available(inputs.query)

    def query_init_scale(self) -> float:
        return 1 / (math.sqrt(self.head_width) * self.scale) if self.scale else 1.0

    def flops(self) -> int:
        return 2 * self.head_width


def fused(inputs: AttentionInputs, scale: float, dropout: float) -> Float[Tensor, "batch heads query value_width"]:
    """Mix values by the softmax of query · key * scale, with torch's kernel."""
    mask = inputs.allowed if inputs.bias is None else inputs.bias
    if inputs.bias is not None and inputs.allowed is not None:
        mask = inputs.bias.masked_fill(~inputs.allowed, -math.inf)
    if inputs.query.shape[-2] == 1 and inputs.query.is_cpu and torch.compiler.is_compiling() and not dropout:
        return _written(inputs, mask, scale)
    if inputs.groups > 1 and mask is not None:  # the fast kernels take a mask or grouped heads, not both
        if inputs.query.shape[-2] == 1:
            return _folded(inputs, mask, scale, dropout)
        inputs = inputs.repeat_kv()
    return F.scaled_dot_product_attention(
        inputs.query,
        inputs.key,
        inputs.value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=inputs.causal and mask is None,
        scale=scale,
        enable_gqa=inputs.groups > 1,
    )


def _folded(inputs: AttentionInputs, mask: Tensor, scale: float, dropout: float) -> Tensor:
    """Let the heads of a group, with one query each, stand as queries of one head: no key is copied."""
    groups = (inputs.key.shape[1], inputs.groups)
    query = inputs.query.squeeze(2).unflatten(1, groups)
    mask = mask.squeeze(2).unflatten(1, groups) if mask.shape[1] > 1 else mask
    output = F.scaled_dot_product_attention(
        query, inputs.key, inputs.value, attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return output.flatten(1, 2)[:, :, None]


def _written(inputs: AttentionInputs, mask: Tensor | None, scale: float) -> Tensor:
    """Mix for one query a row, written out: a compiler makes loops of it that cost less than a call of the kernel.

    What is common to all keys comes after their sums, so that no loop does it again for each.
    """
    groups = (inputs.key.shape[1], inputs.groups)
    query = inputs.query.squeeze(2).unflatten(1, groups)
    scores = (upcast(query)[:, :, :, None] * upcast(inputs.key)[:, :, None]).sum(-1) * scale
    if mask is not None:
        mask = mask.squeeze(2).unflatten(1, groups) if mask.shape[1] > 1 else mask
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    output = (exponentials[..., None] * upcast(inputs.value)[:, :, None]).sum(-2) / exponentials.sum(-1, keepdim=True)
    return output.flatten(1, 2)[:, :, None].to(inputs.query.dtype)


@part("general")
class GeneralScoreConfig(ScoreConfig):
    """Multiply query and key through a matrix of each head's own."""

    scale: float | None = None  # None: 1 / sqrt(head_width)

    def supports_rotary(self) -> bool:
        return False

    def build(self, heads: int, head_width: int) -> "GeneralScore":
        return GeneralScore(heads, head_width, DotScoreConfig(scale=self.scale))


class GeneralScore(Score):
    """query · weight · key * scale."""

    roles = {"weight": Role.INSIDE}

    def __init__(self, heads: int, head_width: int, dot: DotScoreConfig) -> None:
        super().__init__()
        self.dot = dot.build(heads, head_width)
        self.weight = nn.Parameter(torch.empty(heads, head_width, head_width))

    def project_query(self, inputs: AttentionInputs) -> AttentionInputs:
        """Return the meeting with the queries multiplied by the matrix."""
        return dataclasses.replace(inputs, query=inputs.query @ self.weight.to(inputs.query.dtype))

    def forward(self, inputs: AttentionInputs) -> Scores:
        return self.dot(self.project_query(inputs))  # type: ignore[no-any-return]

    def attend(self, inputs: AttentionInputs, dropout: float = 0.0) -> Float[Tensor, "batch heads query value_width"]:
        """Mix as the dot product does, from other queries."""
        return self.dot.attend(self.project_query(inputs), dropout)

    def flops(self) -> int:
        return self.dot.flops()


@part("additive")
class AdditiveScoreConfig(ScoreConfig):
    """Add query and key, bend the sum, and measure it along a vector of each head's own."""

    def supports_rotary(self) -> bool:
        return False

    def build(self, heads: int, head_width: int) -> "AdditiveScore":
        return AdditiveScore(heads, head_width)


class AdditiveScore(Score):
    """vector · tanh(query + key). Holds a vector for every query and key: no kernel spares that."""

    roles = {"vector": Role.BIAS}  # a direction, no matrix: for optimizers like a bias

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(heads, head_width))
        self.initial_values = {"vector": InitialValues(scale=head_width**-0.5)}

    def forward(self, inputs: AttentionInputs) -> Scores:
        both = inputs.query[:, :, :, None] + inputs.repeat_kv().key[:, :, None]
        if inputs.relation is not None:
            both = both + inputs.relation.keys[inputs.relation.index][:, None]
        return torch.einsum("bhqkw,hw->bhqk", both.tanh(), self.vector.to(both.dtype))

    def flops(self) -> int:
        return 4 * self.vector.shape[1]  # add, bend, multiply, sum


@part("sink")
class SinkScoreConfig(ScoreConfig):
    """Give each head one more score, learned, that takes weight and gives nothing (gpt-oss, 2025)."""

    score: ScoreConfig = DotScoreConfig()

    def supports_rotary(self) -> bool:
        return self.score.supports_rotary()

    def build(self, heads: int, head_width: int) -> "SinkScore":
        return SinkScore(heads, self.score.build(heads, head_width))


class SinkScore(Score):
    """softmax(scores, sink), the sink's own weight left out."""

    roles = {"sink": Role.BIAS}

    def __init__(self, heads: int, score: Score) -> None:
        super().__init__()
        self.score, self.sink = score, nn.Parameter(torch.empty(heads))

    def forward(self, inputs: AttentionInputs) -> Scores:
        return self.score(inputs)  # type: ignore[no-any-return]

    def softmax_scores(self, scores: Scores) -> Scores:
        """Turn scores into weights that sum to less than one."""
        sink = self.sink.to(scores.dtype)[:, None, None].expand(len(scores), -1, scores.shape[-2], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]

    def flops(self) -> int:
        return self.score.flops()
