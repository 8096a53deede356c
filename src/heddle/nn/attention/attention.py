"""Attention: many heads, one key-value head for all, or groups (Vaswani 2017; Shazeer 2019; Ainslie 2023)."""

from torch import Tensor, nn

from heddle.core import part
from heddle.core.shapes import Allowed, Stream
from heddle.nn.attention.cached import recall
from heddle.nn.attention.flex_attention import Visible, serves
from heddle.nn.attention.projections import ByHeads, Projected, ProjectionsConfig, check_heads, head_width_of
from heddle.nn.attention.scores import Dot, DotScoreConfig, Meeting, Related, ScoreConfig
from heddle.nn.attention.sliding_window import Near, mix_near
from heddle.nn.attention.value_residual import LeftValues, OwnValuesConfig, ValuesConfig
from heddle.nn.attention.window_warmup import Horizon, narrowed
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
from heddle.nn.positions import rotate
from heddle.nn.state import Cache


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
        turned: frozenset[PositionInput] = frozenset({"rotation"} if self.score.turns() else ())
        return turned | {"stream", "bias", "relation"}

    def head_width_at(self, width: int) -> int:
        """Return each head's width in a stream of this width."""
        return head_width_of(self, width)

    def build(self, width: int, place: Place) -> "Attention":
        return Attention(width, self, place)


class Attention(Projected, PublishesContext):
    """output(softmax(score(query, key)) · value)."""

    horizon: Horizon | None  # how far it sees while it learns; None: as far as its mask lets it

    def __init__(self, width: int, config: AttentionConfig, place: Place) -> None:
        super().__init__()
        self.furnish(width, width, config)
        self.values = config.values.build(place.layer)
        self.maps = FusedLinear(self.query, self.key, *(() if isinstance(self.values, LeftValues) else (self.value,)))
        self.mask, self.sight, self.layer = config.mask, place.sight, place.layer
        self.register_buffer("horizon", None, persistent=False)

    def publish(self, x: Stream, ctx: Context) -> Context:
        """Leave values for later layers where these mix them in."""
        return self.values.leave(self.value(x), ctx) if isinstance(self.values, LeftValues) else ctx

    def forward(self, x: Stream, ctx: Context) -> Stream:
        asked, dropout = self.project(x, ctx), self.dropout if self.training else 0.0
        near, visible = self.near(ctx, x.shape[1]), visible_by(self.mask, self.sight, ctx)
        by_blocks = visible is not None and serves(asked[0]) and not dropout
        if near is None or by_blocks:
            return self.attend(self.between(*asked, ctx))
        assert isinstance(self.score, Dot)
        return self.give(mix_near(*asked, near, self.score.scale, dropout))

    def near(self, ctx: Context, length: int) -> Near | None:
        """Return the window where it is far shorter than the row and nothing stands against going block by block."""
        mask, score = self.mask, self.score
        if not isinstance(mask, SlidingWindowConfig) or mask.sinks or length < 4 * mask.size:
            return None
        if not isinstance(score, Dot) or score.softcap is not None or ctx.bias is not None or ctx.relation is not None:
            return None
        if ctx.new is not None and self.sight == "all":  # padding would be seen
            return None
        return Near(mask.size, self.sight, ctx.documents)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, Cache]:
        """Attend over what is cached and what is new."""
        query, *new = self.project(x, ctx)
        met = recall(tuple(new), ctx, slot, self.mask.ring())
        keys, values = met.kept
        if self.walks(met.ctx) and uses_flash_decoding(query, keys, values):
            assert isinstance(self.score, Dot) and ctx.state is not None
            return self.give(flash_decode(query, keys, values, ctx.state.lengths, self.score.scale)), met.cache
        return self.attend(self.between(query, keys, values, met.ctx)), met.cache

    def walks(self, ctx: Context) -> bool:
        """Tell whether a token meets all of its row's cache and nothing stands between, so that lengths say it all."""
        plain = isinstance(self.score, Dot) and self.score.softcap is None and self.mask.open
        return plain and ctx.new is None and ctx.bias is None and ctx.relation is None

    def meet(self, x: Stream, ctx: Context) -> Meeting:
        """Return who asks, who answers and what lies between them, without a state."""
        return self.between(*self.project(x, ctx), ctx)

    def project(self, x: Stream, ctx: Context) -> tuple[ByHeads, ByHeads, ByHeads]:
        """Return queries, keys and values as [batch, heads, length, head_width], turned where positions turn them."""
        asked, answered, *own = self.maps(x)
        values = self.values(own[0] if own else None, ctx)
        query, (key, value) = self.asking(asked), self.answering(answered, values)
        if ctx.rotation is not None:
            rotation = ctx.rotation.for_mask(full=self.mask.open)
            query, key = rotate(query, rotation), rotate(key, rotation)
        return query, key, value

    def between(self, query: Tensor, key: Tensor, value: Tensor, ctx: Context) -> Meeting:
        """Return the meeting, with what the context says of each query and key."""
        allowed = allowed_by(self.mask, self.sight, ctx, query.shape[2], key)
        bias = None if ctx.bias is None else ctx.bias[self.heads]
        relation, visible = related(ctx, self.layer), visible_by(self.mask, self.sight, ctx)
        meeting = Meeting(query, key, value, allowed, self.sight == "past", bias, relation, visible)
        if self.horizon is None or not self.training or ctx.state is not None:
            return meeting
        return narrowed(meeting, self.horizon)

    def mixing_flops(self, length: int) -> int:
        return self.mask.span(length) * self.pair_flops()

    def state_elements(self) -> int:
        return 2 * self.kv_heads * self.head_width


def allowed_by(mask: MaskConfig, sight: Sight, ctx: Context, queries: int, key: Tensor) -> Allowed | None:
    """Return what a mask leaves for so many queries, or None where the sight alone decides and the kernel knows it."""
    if mask.open:
        return ctx.allowed
    base, keys = ctx.allowed, key.shape[2]
    if base is None and sight == "past":
        base = causal_mask(queries, key.device)
    return mask.narrow(base, key_distances(ctx, queries, keys, key.device), document_positions(ctx, keys, key.device))


def visible_by(mask: MaskConfig, sight: Sight, ctx: Context) -> Visible | None:
    """Return the same as a rule over places; None where keys are cached, or a mask has more to say than a window."""
    window = mask.size if isinstance(mask, SlidingWindowConfig) and not mask.sinks else None
    if ctx.state is not None or (window is None and not mask.open):
        return None
    real = ctx.new if sight == "all" and ctx.documents is None else None  # else padding is out of sight, or apart
    return Visible(sight, ctx.documents, window, real)


def related(ctx: Context, layer: int) -> Related | None:
    """Return the vectors for each distance that belong to a layer."""
    if ctx.relation is None:
        return None
    return Related(ctx.relation.keys[layer], ctx.relation.values[layer], ctx.relation.index)


def set_horizon(model: nn.Module, horizon: Horizon | None) -> int:
    """Set how far attention that sees all may look while it learns, None: all again; tell how many there are of it.

    The tensor is shared, and may be written over: no compiled step need be made anew for another size.
    """
    found = [module for module in model.modules() if isinstance(module, Attention) and module.mask.open]
    for attention in found:
        attention.horizon = horizon
    return len(found)
