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
from heddle.nn.attention.flex_attention import Visible, mix_sparse, serves
from heddle.nn.base import InitialValues, Module, Role, upcast
from heddle.nn.layers import apply_softcap

LONGEST_WRITTEN = 512  # keys; beyond, whole score matrices cost more than they save
Scores = Float[Tensor, "batch heads query key"]


@dataclass(frozen=True)
class Related:
    """One layer's vectors for each clipped distance (Shaw et al. 2018)."""

    keys: Float[Tensor, "distances head_width"]
    values: Float[Tensor, "distances head_width"]
    index: Int[Tensor, "#batch query key"]

    def asked(self, query: Tensor) -> Scores:
        """Return query · keys[distance] for every query and key."""
        by_distance = upcast(query @ self.keys.T)  # its gradient is a sum over many keys
        return by_distance.gather(-1, self.index[:, None].expand(*query.shape[:2], -1, -1))

    def answered(self, weights: Scores) -> Tensor:
        """Return the sum over keys of weight * values[distance]."""
        batch, heads, queries, _ = weights.shape
        shares = upcast(weights)  # many far keys fall into one distance: half precision would lose the small ones
        by_distance = shares.new_zeros(batch, heads, queries, len(self.values))
        index = self.index[:, None].expand_as(weights)
        return by_distance.scatter_add(-1, index, shares).to(weights.dtype) @ self.values


@dataclass(frozen=True)
class Meeting:
    """Queries, keys and values, and what lies between them; keys and values may have fewer heads, shared by groups."""

    query: Float[Tensor, "batch heads query head_width"]
    key: Float[Tensor, "batch kv_heads key head_width"]
    value: Float[Tensor, "batch kv_heads key value_width"]
    allowed: Allowed | None = None  # None: `causal` decides
    causal: bool = False  # with no `allowed`: a query sees what stands no later than itself
    bias: Float[Tensor, "#batch heads query key"] | None = None  # with no `allowed` it is -inf where causality forbids
    relation: Related | None = None
    visible: Visible | None = None  # what `allowed` and `causal` say, as a rule; None: they say what no rule does

    @property
    def groups(self) -> int:
        """Count the query heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    def spread(self) -> "Meeting":
        """Return the meeting with a key and value head for each query head."""
        if self.groups == 1:
            return self
        key, value = (t.repeat_interleave(self.groups, dim=1) for t in (self.key, self.value))
        return dataclasses.replace(self, key=key, value=value)

    def judged(self, scores: Scores) -> Scores:
        """Return the scores with the bias added, and without what is not allowed."""
        if self.bias is not None:
            scores = upcast(scores) + self.bias
        if self.allowed is not None:
            return scores.masked_fill(~self.allowed, torch.finfo(scores.dtype).min)
        if self.causal and self.bias is None:
            past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            return scores.masked_fill(~past, torch.finfo(scores.dtype).min)
        return scores

    def mixed(self, weights: Scores) -> Tensor:
        """Return the values mixed by the weights, [batch, heads, query, value_width]."""
        mixed = weights @ self.spread().value
        return mixed if self.relation is None else mixed + self.relation.answered(weights)


class ScoreConfig(Config, ABC):
    """How a query and a key are compared."""

    def turns(self) -> bool:
        """Tell whether queries and keys turned by rotary positions are compared by distance alone."""
        return True

    @abstractmethod
    def build(self, heads: int, head_width: int) -> "Score":
        """Build the module for so many heads of this width."""


class Score(Module, ABC):
    """A module: meeting -> scores. `weights` and `mix` go on from there."""

    @abstractmethod
    def forward(self, meeting: Meeting) -> Scores:
        """Compare every query with every key; bias and mask come later."""

    def share(self, scores: Scores) -> Scores:
        """Turn scores into weights."""
        return scores.softmax(-1)

    def shares(self, meeting: Meeting) -> Scores:
        """Return the weights of every query that may see something."""
        return self.share(upcast(meeting.judged(self(meeting)))).to(meeting.query.dtype)

    def weights(self, meeting: Meeting) -> Scores:
        """Return how much each query takes from each key; nothing at all where nothing is allowed."""
        shares = self.shares(meeting)
        return shares if meeting.allowed is None else shares.masked_fill(~meeting.allowed, 0)

    def mix(self, meeting: Meeting, dropout: float = 0.0) -> Float[Tensor, "batch heads query value_width"]:
        """Mix the values by the weights, some of which are dropped."""
        mixed = meeting.mixed(F.dropout(self.shares(meeting), dropout, training=dropout > 0))
        if meeting.allowed is None:
            return mixed
        return mixed.masked_fill(~meeting.allowed.any(-1, keepdim=True), 0)  # cheaper than the same on the weights

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

    def build(self, heads: int, head_width: int) -> "Dot":
        scale = 1 / math.sqrt(head_width) if self.scale is None else self.scale
        return Dot(head_width, scale, self.softcap)


class Dot(Score):
    """query · key * scale."""

    def __init__(self, head_width: int, scale: float, softcap: float | None = None) -> None:
        super().__init__()
        self.head_width, self.scale, self.softcap = head_width, scale, softcap

    def forward(self, meeting: Meeting) -> Scores:
        query = meeting.query * self.scale
        scores = query @ meeting.spread().key.transpose(-1, -2)
        if meeting.relation is not None:
            scores = scores + meeting.relation.asked(query)
        return apply_softcap(scores, self.softcap)

    def mix(self, meeting: Meeting, dropout: float = 0.0) -> Float[Tensor, "batch heads query value_width"]:
        """Mix by the fused kernel where it can and is faster, and by blocks where a rule says which can be skipped.

        On a CPU in half precision, short rows were measured faster written out (decision 0009).
        """
        visible = meeting.visible
        if visible is not None and self._by_blocks(meeting, visible, dropout):
            return mix_sparse(meeting.query, meeting.key, meeting.value, visible, self.scale, self.softcap)
        query, keys = meeting.query, meeting.key.shape[-2]
        short = query.is_cpu and query.dtype is torch.bfloat16 and keys <= LONGEST_WRITTEN and query.shape[-2] > 1
        if short or self.softcap is not None or meeting.relation is not None:
            return super().mix(meeting, dropout)
        return fused(meeting, self.scale, dropout)

    def _by_blocks(self, meeting: Meeting, visible: Visible, dropout: float) -> bool:
        if dropout or meeting.bias is not None or meeting.relation is not None:
            return False
        return (visible.narrows or self.softcap is not None) and serves(meeting.query)

    def query_init_scale(self) -> float:
        return 1 / (math.sqrt(self.head_width) * self.scale) if self.scale else 1.0

    def flops(self) -> int:
        return 2 * self.head_width


def fused(meeting: Meeting, scale: float, dropout: float) -> Float[Tensor, "batch heads query value_width"]:
    """Mix values by the softmax of query · key * scale, with torch's kernel."""
    mask = meeting.allowed if meeting.bias is None else meeting.bias
    if meeting.bias is not None and meeting.allowed is not None:
        mask = meeting.bias.masked_fill(~meeting.allowed, -math.inf)
    if meeting.query.shape[-2] == 1 and meeting.query.is_cpu and torch.compiler.is_compiling() and not dropout:
        return _written(meeting, mask, scale)
    if meeting.groups > 1 and mask is not None:  # the fast kernels take a mask or grouped heads, not both
        if meeting.query.shape[-2] == 1:
            return _folded(meeting, mask, scale, dropout)
        meeting = meeting.spread()
    return F.scaled_dot_product_attention(
        meeting.query,
        meeting.key,
        meeting.value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=meeting.causal and mask is None,
        scale=scale,
        enable_gqa=meeting.groups > 1,
    )


def _folded(meeting: Meeting, mask: Tensor, scale: float, dropout: float) -> Tensor:
    """Let the heads of a group, with one query each, stand as queries of one head: no key is copied."""
    groups = (meeting.key.shape[1], meeting.groups)
    query = meeting.query.squeeze(2).unflatten(1, groups)
    mask = mask.squeeze(2).unflatten(1, groups) if mask.shape[1] > 1 else mask
    mixed = F.scaled_dot_product_attention(
        query, meeting.key, meeting.value, attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return mixed.flatten(1, 2)[:, :, None]


def _written(meeting: Meeting, mask: Tensor | None, scale: float) -> Tensor:
    """Mix for one query a row, written out: a compiler makes loops of it that cost less than a call of the kernel.

    What is common to all keys comes after their sums, so that no loop does it again for each.
    """
    groups = (meeting.key.shape[1], meeting.groups)
    query = meeting.query.squeeze(2).unflatten(1, groups)
    scores = (upcast(query)[:, :, :, None] * upcast(meeting.key)[:, :, None]).sum(-1) * scale
    if mask is not None:
        mask = mask.squeeze(2).unflatten(1, groups) if mask.shape[1] > 1 else mask
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    mixed = (raised[..., None] * upcast(meeting.value)[:, :, None]).sum(-2) / raised.sum(-1, keepdim=True)
    return mixed.flatten(1, 2)[:, :, None].to(meeting.query.dtype)


@part("general")
class GeneralScoreConfig(ScoreConfig):
    """Multiply query and key through a matrix of each head's own."""

    scale: float | None = None  # None: 1 / sqrt(head_width)

    def turns(self) -> bool:
        return False

    def build(self, heads: int, head_width: int) -> "General":
        return General(heads, head_width, DotScoreConfig(scale=self.scale))


class General(Score):
    """query · weight · key * scale."""

    roles = {"weight": Role.INSIDE}

    def __init__(self, heads: int, head_width: int, dot: DotScoreConfig) -> None:
        super().__init__()
        self.dot = dot.build(heads, head_width)
        self.weight = nn.Parameter(torch.empty(heads, head_width, head_width))

    def through(self, meeting: Meeting) -> Meeting:
        """Return the meeting with the queries multiplied by the matrix."""
        return dataclasses.replace(meeting, query=meeting.query @ self.weight.to(meeting.query.dtype))

    def forward(self, meeting: Meeting) -> Scores:
        return self.dot(self.through(meeting))  # type: ignore[no-any-return]

    def mix(self, meeting: Meeting, dropout: float = 0.0) -> Float[Tensor, "batch heads query value_width"]:
        """Mix as the dot product does, from other queries."""
        return self.dot.mix(self.through(meeting), dropout)

    def flops(self) -> int:
        return self.dot.flops()


@part("additive")
class AdditiveScoreConfig(ScoreConfig):
    """Add query and key, bend the sum, and measure it along a vector of each head's own."""

    def turns(self) -> bool:
        return False

    def build(self, heads: int, head_width: int) -> "Additive":
        return Additive(heads, head_width)


class Additive(Score):
    """vector · tanh(query + key). Holds a vector for every query and key: no kernel spares that."""

    roles = {"vector": Role.BIAS}  # a direction, no matrix: for optimizers like a bias

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(heads, head_width))
        self.initial_values = {"vector": InitialValues(scale=head_width**-0.5)}

    def forward(self, meeting: Meeting) -> Scores:
        both = meeting.query[:, :, :, None] + meeting.spread().key[:, :, None]
        if meeting.relation is not None:
            both = both + meeting.relation.keys[meeting.relation.index][:, None]
        return torch.einsum("bhqkw,hw->bhqk", both.tanh(), self.vector.to(both.dtype))

    def flops(self) -> int:
        return 4 * self.vector.shape[1]  # add, bend, multiply, sum


@part("sink")
class SinkScoreConfig(ScoreConfig):
    """Give each head one more score, learned, that takes weight and gives nothing (gpt-oss, 2025)."""

    score: ScoreConfig = DotScoreConfig()

    def turns(self) -> bool:
        return self.score.turns()

    def build(self, heads: int, head_width: int) -> "Sink":
        return Sink(heads, self.score.build(heads, head_width))


class Sink(Score):
    """softmax(scores, sink), the sink's own weight left out."""

    roles = {"sink": Role.BIAS}

    def __init__(self, heads: int, score: Score) -> None:
        super().__init__()
        self.score, self.sink = score, nn.Parameter(torch.empty(heads))

    def forward(self, meeting: Meeting) -> Scores:
        return self.score(meeting)  # type: ignore[no-any-return]

    def share(self, scores: Scores) -> Scores:
        """Turn scores into weights that sum to less than one."""
        sink = self.sink.to(scores.dtype)[:, None, None].expand(len(scores), -1, scores.shape[-2], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]

    def flops(self) -> int:
        return self.score.flops()
