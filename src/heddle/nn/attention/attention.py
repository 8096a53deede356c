"""Attention: many heads, one key-value head for all, or groups (Vaswani 2017; Shazeer 2019; Ainslie 2023)."""

from torch import Tensor, nn

from heddle.core import part
from heddle.core.shapes import Allowed, Stream
from heddle.nn.attention.flex_attention import FlexMask, flex_available
from heddle.nn.attention.kv_update import update_kv_cache
from heddle.nn.attention.projections import MultiHeadAttention, PerHead, ProjectionsConfig, check_heads, head_width_for
from heddle.nn.attention.scores import AttentionInputs, DotScoreConfig, RelativeTerms, ScaledDotProduct, ScoreConfig
from heddle.nn.attention.sliding_window import SlidingWindow, sliding_window_attend
from heddle.nn.attention.value_residual import FirstValues, OwnValuesConfig, ValuesConfig
from heddle.nn.attention.window_warmup import WarmupWindow, apply_warmup_window
from heddle.nn.base import Context, FusedLinear, Place, PositionInput, PublishesContext, SelfAttentionConfig, Sight
from heddle.nn.kernels import flash_decode, uses_flash_decoding
from heddle.nn.layers import (
    FullMaskConfig,
    MaskConfig,
    SlidingWindowConfig,
    causal_mask,
    document_positions,
    key_distances,
)
from heddle.nn.positions import apply_rotary
from heddle.nn.state import KVCache


@part("attention")
class AttentionConfig(SelfAttentionConfig):
    """Every position asks, every position that it may see answers."""

    heads: int
    kv_heads: int | None = None  # None: as many as heads; 1: multi-query; between: grouped
    head_width: int | None = None  # None: width / heads
    projections: ProjectionsConfig = ProjectionsConfig()
    score: ScoreConfig = DotScoreConfig()
    mask: MaskConfig = FullMaskConfig()
    values: ValuesConfig = OwnValuesConfig()
    dropout: float = 0.0  # of the weights

    def __post_init__(self) -> None:
        check_heads(self)

    @property
    def accepts(self) -> frozenset[PositionInput]:
        """Return the entrances that it understands: a score that is no dot product gains nothing from a rotation."""
        turned: frozenset[PositionInput] = frozenset({"rotation"} if self.score.supports_rotary() else ())
        return turned | {"stream", "bias", "relation"}

    def head_width_at(self, width: int) -> int:
        """Return each head's width in a stream of this width."""
        return head_width_for(self, width)

    def build(self, width: int, place: Place) -> "Attention":
        return Attention(width, self, place)


class Attention(MultiHeadAttention, PublishesContext):
    """output(softmax(score(query, key)) · value)."""

    warmup_window: WarmupWindow | None  # how far it sees while it learns; None: as far as its mask lets it

    def __init__(self, width: int, config: AttentionConfig, place: Place) -> None:
        super().__init__()
        self.build_projections(width, width, config)
        self.values = config.values.build(place.layer)
        self.qkv = FusedLinear(self.query, self.key, *(() if isinstance(self.values, FirstValues) else (self.value,)))
        self.mask, self.sight, self.layer = config.mask, place.sight, place.layer
        self.register_buffer("warmup_window", None, persistent=False)

    def publish(self, x: Stream, ctx: Context) -> Context:
        """Leave values for later layers where these mix them in."""
        return self.values.publish(self.value(x), ctx) if isinstance(self.values, FirstValues) else ctx

    def forward(self, x: Stream, ctx: Context) -> Stream:
        projected, dropout = self.project(x, ctx), self.dropout if self.training else 0.0
        sliding_window, flex_mask = self.sliding_window(ctx, x.shape[1]), flex_mask_for(self.mask, self.sight, ctx)
        by_blocks = flex_mask is not None and flex_available(projected[0]) and not dropout
        if sliding_window is None or by_blocks:
            return self.attend(self.inputs_from(*projected, ctx))
        assert isinstance(self.score, ScaledDotProduct)
        return self.project_output(sliding_window_attend(*projected, sliding_window, self.score.scale, dropout))

    def sliding_window(self, ctx: Context, length: int) -> SlidingWindow | None:
        """Return the window where it is far shorter than the row and nothing stands against going block by block."""
        mask, score = self.mask, self.score
        if not isinstance(mask, SlidingWindowConfig) or mask.sinks or length < 4 * mask.size:
            return None
        if (
            not isinstance(score, ScaledDotProduct)
            or score.softcap is not None
            or ctx.bias is not None
            or ctx.relation is not None
        ):
            return None
        if ctx.new is not None and self.sight == "all":  # padding would be seen
            return None
        return SlidingWindow(mask.size, self.sight, ctx.documents)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, KVCache]:
        """Attend over what is cached and what is new."""
        query, *new = self.project(x, ctx)
        cached = update_kv_cache(tuple(new), ctx, slot, self.mask.ring())
        keys, values = cached.kept
        if self.attends_whole_cache(cached.ctx) and uses_flash_decoding(query, keys, values):
            assert isinstance(self.score, ScaledDotProduct) and ctx.state is not None
            return self.project_output(
                flash_decode(query, keys, values, ctx.state.lengths, self.score.scale)
            ), cached.cache
        return self.attend(self.inputs_from(query, keys, values, cached.ctx)), cached.cache

    def attends_whole_cache(self, ctx: Context) -> bool:
        """Tell whether a token meets all of its row's cache and nothing stands between, so that lengths say it all."""
        plain = isinstance(self.score, ScaledDotProduct) and self.score.softcap is None and self.mask.is_full
        return plain and ctx.new is None and ctx.bias is None and ctx.relation is None

    def attention_inputs(self, x: Stream, ctx: Context) -> AttentionInputs:
        """Return who asks, who answers and what lies between them, without a state."""
        return self.inputs_from(*self.project(x, ctx), ctx)

    def project(self, x: Stream, ctx: Context) -> tuple[PerHead, PerHead, PerHead]:
        """Return queries, keys and values as [batch, heads, length, head_width], turned where positions turn them."""
        projected, key_projection, *own = self.qkv(x)
        values = self.values(own[0] if own else None, ctx)
        query, (key, value) = self.split_query(projected), self.split_key_value(key_projection, values)
        if ctx.rotation is not None:
            rotation = ctx.rotation.for_mask(full=self.mask.is_full)
            query, key = apply_rotary(query, rotation), apply_rotary(key, rotation)
        return query, key, value

    def inputs_from(self, query: Tensor, key: Tensor, value: Tensor, ctx: Context) -> AttentionInputs:
        """Return the meeting, with what the context says of each query and key."""
        allowed = allowed_keys(self.mask, self.sight, ctx, query.shape[2], key)
        bias = None if ctx.bias is None else ctx.bias[self.heads]
        relation, flex_mask = relative_terms(ctx, self.layer), flex_mask_for(self.mask, self.sight, ctx)
        inputs = AttentionInputs(query, key, value, allowed, self.sight == "past", bias, relation, flex_mask)
        if self.warmup_window is None or not self.training or ctx.state is not None:
            return inputs
        return apply_warmup_window(inputs, self.warmup_window)

    def mixing_flops(self, length: int) -> int:
        return self.mask.keys_per_query(length) * self.pair_flops()

    def state_elements(self) -> int:
        return 2 * self.kv_heads * self.head_width


def allowed_keys(mask: MaskConfig, sight: Sight, ctx: Context, queries: int, key: Tensor) -> Allowed | None:
    """Return what a mask leaves for so many queries, or None where the sight alone decides and the kernel knows it."""
    if mask.is_full:
        return ctx.allowed
    base, keys = ctx.allowed, key.shape[2]
    if base is None and sight == "past":
        base = causal_mask(queries, key.device)
    return mask.restrict(base, key_distances(ctx, queries, keys, key.device), document_positions(ctx, keys, key.device))


def flex_mask_for(mask: MaskConfig, sight: Sight, ctx: Context) -> FlexMask | None:
    """Return the same as a rule over places; None where keys are cached, or a mask has more to say than a window."""
    window = mask.size if isinstance(mask, SlidingWindowConfig) and not mask.sinks else None
    if ctx.state is not None or (window is None and not mask.is_full):
        return None
    real = ctx.new if sight == "all" and ctx.documents is None else None  # else padding is out of sight, or apart
    return FlexMask(sight, ctx.documents, window, real)


def relative_terms(ctx: Context, layer: int) -> RelativeTerms | None:
    """Return the vectors for each distance that belong to a layer."""
    if ctx.relation is None:
        return None
    return RelativeTerms(ctx.relation.keys[layer], ctx.relation.values[layer], ctx.relation.index)


def set_warmup_window(model: nn.Module, warmup_window: WarmupWindow | None) -> int:
    """Set how far attention that sees all may look while it learns, None: all again; tell how many there are of it.

    The tensor is shared, and may be written over: no compiled step need be made anew for another size.
    """
    found = [module for module in model.modules() if isinstance(module, Attention) and module.mask.is_full]
    for attention in found:
        attention.warmup_window = warmup_window
    return len(found)
