"""Multi-head, multi-query and grouped-query attention (GQA) (Vaswani 2017; Shazeer 2019; Ainslie 2023)."""

from abc import ABC
from functools import partial

from torch import Tensor, nn

from heddle.core import part
from heddle.core.shapes import Stream
from heddle.nn.attention.backends import AttentionInputs, RelativeTerms, WarmupWindow
from heddle.nn.attention.flex_attention import FlexMask
from heddle.nn.attention.kv_update import update_kv_cache
from heddle.nn.attention.projections import (
    AttentionPart,
    HasProjections,
    PerHead,
    ProjectionsConfig,
    check_heads,
    head_width_for,
)
from heddle.nn.attention.scores import DotScoreConfig, ScoreConfig
from heddle.nn.attention.sliding_window import SlidingWindow
from heddle.nn.attention.value_residual import FirstValues, OwnValuesConfig, ValuesConfig
from heddle.nn.base import (
    Context,
    FusedLinear,
    Linear,
    Place,
    PositionInput,
    PublishesContext,
    Role,
    SelfAttentionConfig,
    Sight,
)
from heddle.nn.layers import FullMaskConfig, MaskConfig, SlidingWindowConfig, allowed_keys
from heddle.nn.positions import apply_rotary
from heddle.nn.state import KVCache


class MultiHeadAttention(AttentionPart, ABC):
    """Query, key, value and output projections around a score; their attribute names are state-dict names."""

    def build_projections(self, width: int, source: int, config: HasProjections) -> None:
        """Build the projections: queries from a stream of `width`, keys and values from one of `source`."""
        self.heads, self.head_width = config.heads, head_width_for(config, width)
        self.kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        self.dropout, projections = config.dropout, config.projections
        self.query = Linear(width, self.heads * self.head_width, bias=projections.bias)
        self.key = Linear(source, self.kv_heads * self.head_width, bias=projections.bias)
        self.value = Linear(source, self.kv_heads * self.head_width, bias=projections.bias)
        self.output = Linear(self.heads * self.head_width, width, bias=projections.output_bias, role=Role.INTO_STREAM)
        self.query_norm = projections.norm.build(self.head_width)
        self.key_norm = projections.norm.build(self.head_width)
        self.query_across = projections.across.build(self.heads * self.head_width)
        self.key_across = projections.across.build(self.kv_heads * self.head_width)
        self.score = config.score.build(self.heads, self.head_width)
        self.query.init_scale = self.score.query_init_scale()

    def split_query(self, query: Stream) -> PerHead:
        """Return projected queries per head, normalized."""
        heads = self.query_across(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.query_norm(heads)  # type: ignore[no-any-return]

    def split_key_value(self, key: Stream, value: Stream) -> tuple[PerHead, PerHead]:
        """Return projected keys, normalized, and values per head."""
        heads = (self.kv_heads, -1)
        key = self.key_norm(self.key_across(key).unflatten(-1, heads).transpose(1, 2))
        return key, value.unflatten(-1, heads).transpose(1, 2)

    def attend(self, inputs: AttentionInputs) -> Stream:
        """Return the output projection of all heads' attention."""
        heads = self.score.attend(inputs, self.dropout if self.training else 0.0)
        return self.output(heads.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def pair_flops(self) -> int:
        """Count the FLOPs of one query and one key."""
        return self.heads * (self.score.flops() + 2 * self.head_width)


@part("attention")
class AttentionConfig(SelfAttentionConfig):
    """Self-attention: every position attends to every position that it may see.

    heads: how many attention heads.
    kv_heads: heads of keys and values; None: as many as heads; 1: multi-query; between: grouped-query.
    head_width: width of each head; None: width / heads.
    projections: how queries, keys, values and the output are projected.
    score: how a query and a key become a score.
    mask: which positions are seen, beyond causality and documents.
    values: whether later layers mix in the first layer's values.
    dropout: attention dropout: rate on the softmax weights.
    """

    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    projections: ProjectionsConfig = ProjectionsConfig()
    score: ScoreConfig = DotScoreConfig()
    mask: MaskConfig = FullMaskConfig()
    values: ValuesConfig = OwnValuesConfig()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_heads(self)

    @property
    def accepts(self) -> frozenset[PositionInput]:
        """Return the position inputs that it supports: rotations need a score that is a dot product."""
        rotary: frozenset[PositionInput] = frozenset({"rotation"} if self.score.supports_rotary() else ())
        return rotary | {"stream", "bias", "relation"}

    def head_width_at(self, width: int) -> int:
        """Return each head's width in a stream of this width."""
        return head_width_for(self, width)

    def build(self, width: int, place: Place) -> "Attention":
        return Attention(width, self, place)


class Attention(MultiHeadAttention, PublishesContext):
    """output(softmax(score(query, key)) · value)."""

    warmup_window: WarmupWindow | None  # window warm-up: how far it sees in training; None: as far as its mask allows

    def __init__(self, width: int, config: AttentionConfig, place: Place) -> None:
        super().__init__()
        self.build_projections(width, width, config)
        self.values = config.values.build(place.layer)
        self.qkv = FusedLinear(self.query, self.key, *(() if isinstance(self.values, FirstValues) else (self.value,)))
        self.mask, self.sight, self.layer = config.mask, place.sight, place.layer
        self.register_buffer("warmup_window", None, persistent=False)

    def publish(self, x: Stream, ctx: Context) -> Context:
        """Publish the first layer's values where later layers mix them in (value residual)."""
        return self.values.publish(self.value(x), ctx) if isinstance(self.values, FirstValues) else ctx

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.attend(self.inputs_from(*self.project(x, ctx), ctx))

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, KVCache]:
        """Attend over the KV cache and the new tokens."""
        query, *new = self.project(x, ctx)
        cached = update_kv_cache(tuple(new), ctx, slot, self.mask.ring())
        key, value = cached.tensors
        return self.attend(self.inputs_from(query, key, value, cached.ctx)), cached.cache

    def attention_inputs(self, x: Stream, ctx: Context) -> AttentionInputs:
        """Return queries, keys and values with mask and bias, without a state."""
        return self.inputs_from(*self.project(x, ctx), ctx)

    def project(self, x: Stream, ctx: Context) -> tuple[PerHead, PerHead, PerHead]:
        """Return queries, keys and values as [batch, heads, length, head_width], with rotary embeddings applied."""
        query, key, *own = self.qkv(x)
        value = own[0] if self.values is None else self.values(own[0] if own else None, ctx)
        query, (key, value) = self.split_query(query), self.split_key_value(key, value)
        if ctx.rotation is not None:
            rotation = ctx.rotation.for_mask(full=self.mask.is_full)
            query, key = apply_rotary(query, rotation), apply_rotary(key, rotation)
        return query, key, value

    def inputs_from(self, query: Tensor, key: Tensor, value: Tensor, ctx: Context) -> AttentionInputs:
        """Return the inputs with mask, bias and relative terms from the context."""
        full, bias, relation, at = self.mask.is_full, ctx.bias, ctx.relation, self.layer
        terms = None
        if relation is not None:
            terms = RelativeTerms(relation.keys[at], relation.values[at], relation.index)
        inputs = AttentionInputs(
            query,
            key,
            value,
            allowed=ctx.allowed if full else None,
            causal=self.sight == "past",
            bias=None if bias is None else bias[self.heads],
            relation=terms,
            build_mask=None if full else partial(allowed_keys, self.mask, self.sight, ctx, query.shape[2], key),
            flex_mask=None if ctx.state is not None else flex_mask_for(self.mask, self.sight, ctx),
            sliding_window=None if full else self.sliding_window(ctx),
            cache_lengths=ctx.state.lengths if full and ctx.state is not None and ctx.lengths is None else None,
        )
        if self.warmup_window is None or not self.training or ctx.state is not None:
            return inputs
        return inputs.in_window(self.warmup_window)

    def sliding_window(self, ctx: Context) -> SlidingWindow | None:
        """Return the window where it alone decides which keys are seen; None: sinks, padding or a cache do too."""
        mask = self.mask
        if not isinstance(mask, SlidingWindowConfig) or mask.sinks or ctx.state is not None or ctx.prefix is not None:
            return None
        if ctx.lengths is not None and self.sight == "all":  # padding would be seen
            return None
        return SlidingWindow(mask.size, self.sight, ctx.documents)

    def mixing_flops(self, length: int) -> int:
        return self.mask.keys_per_query(length) * self.pair_flops()

    def state_elements(self) -> int:
        return 2 * self.kv_heads * self.head_width


def flex_mask_for(mask: MaskConfig, sight: Sight, ctx: Context) -> FlexMask | None:
    """Return the mask as a rule over positions; None where the mask is more than a window."""
    window = mask.size if isinstance(mask, SlidingWindowConfig) and not mask.sinks else None
    if (window is None and not mask.is_full) or ctx.prefix is not None:
        return None
    lengths = ctx.lengths if sight == "all" and ctx.documents is None else None  # else padding is masked anyway
    return FlexMask(sight, ctx.documents, window, lengths)


def set_warmup_window(model: nn.Module, warmup_window: WarmupWindow | None) -> int:
    """Set the window of window warm-up for all attention without a mask, None: no window; return how many there are.

    The tensor is shared and may be overwritten: a compiled step is not compiled again for another size.
    """
    found = [module for module in model.modules() if isinstance(module, Attention) and module.mask.is_full]
    for attention in found:
        attention.warmup_window = warmup_window
    return len(found)
