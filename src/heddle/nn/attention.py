"""Attention: many heads, one key-value head for all, or groups (Vaswani 2017; Shazeer 2019; Ainslie 2023)."""

from torch import Tensor

from heddle.core import Config, ConfigError, UsageError, part, settings
from heddle.core.shapes import Allowed, Stream
from heddle.nn.masks import MaskConfig, WholeConfig, distance_of, park, past_mask, steps_of
from heddle.nn.norms import NoNormConfig, NormConfig
from heddle.nn.part import Context, HeadedConfig, Linear, Place, Remembering, Role, check_at_least_one, check_dropout
from heddle.nn.positions import rotate
from heddle.nn.scores import mix
from heddle.nn.state import KeyValues


@settings
class ProjectionsConfig(Config):
    """How queries, keys, values and the output are projected."""

    bias: bool = False  # on queries, keys and values
    output_bias: bool = False
    norm: NormConfig = NoNormConfig()  # of each head's query and key (Henry et al. 2020)


@part("attention")
class AttentionConfig(HeadedConfig):
    """Every position asks, every position that it may see answers."""

    takes = frozenset({"stream", "rotation"})

    heads: int
    kv_heads: int | None = None  # None: as many as heads; 1: multi-query; between: grouped
    head_width: int | None = None  # None: width / heads
    projections: ProjectionsConfig = ProjectionsConfig()
    mask: MaskConfig = WholeConfig()
    dropout: float = 0.0  # of the weights

    def __post_init__(self) -> None:
        check_at_least_one(heads=self.heads, head_width=self.head_width)
        check_dropout(self.dropout)
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if kv_heads < 1 or self.heads % kv_heads:
            raise ConfigError("kv_heads", want=f"a divisor of heads = {self.heads}", got=kv_heads)

    def head_width_at(self, width: int) -> int:
        """Return each head's width in a stream of this width."""
        if self.head_width is not None:
            return self.head_width
        if width % self.heads:
            raise ConfigError("heads", want=f"a divisor of the width {width}", got=self.heads)
        return width // self.heads

    def build(self, width: int, place: Place) -> "Attention":
        return Attention(width, self, place)


class Attention(Remembering):
    """output(softmax(query · key / sqrt(head_width)) · value)."""

    def __init__(self, width: int, config: AttentionConfig, place: Place) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width_at(width)
        self.kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        self.mask, self.dropout, self.sight = config.mask, config.dropout, place.sight
        how = config.projections
        self.query = Linear(width, self.heads * self.head_width, bias=how.bias)
        self.key = Linear(width, self.kv_heads * self.head_width, bias=how.bias)
        self.value = Linear(width, self.kv_heads * self.head_width, bias=how.bias)
        self.output = Linear(self.heads * self.head_width, width, bias=how.output_bias, role=Role.INTO_STREAM)
        self.query_norm = how.norm.build(self.head_width)
        self.key_norm = how.norm.build(self.head_width)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        query, key, value = self.project(x, ctx)
        return self.attend(query, key, value, self.allowed(ctx, x.shape[1], x.shape[1], x))

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, KeyValues]:
        """Attend over what is cached and what is new."""
        if ctx.state is None:
            raise ConfigError("ctx.state", want="a state", got=None)
        if ctx.documents is not None:
            raise UsageError("attention goes on from a state within one document: give documents or a state, not both")
        query, key, value = self.project(x, ctx)
        room = ctx.state.room
        cache = slot if isinstance(slot, KeyValues) else KeyValues.empty(key, room)
        cache.write(key, value, park(steps_of(ctx, x.shape[1], x.device), ctx, at=room))
        allowed = self.allowed(ctx, x.shape[1], room, x)
        return self.attend(query, cache.keys[:, :, :room], cache.values[:, :, :room], allowed), cache

    def project(self, x: Stream, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values as [batch, heads, length, head_width], turned where positions turn them."""
        query = self.query_norm(self.query(x).unflatten(-1, (self.heads, self.head_width))).transpose(1, 2)
        key = self.key_norm(self.key(x).unflatten(-1, (self.kv_heads, self.head_width))).transpose(1, 2)
        value = self.value(x).unflatten(-1, (self.kv_heads, self.head_width)).transpose(1, 2)
        if ctx.rotation is not None:
            query, key = rotate(query, ctx.rotation), rotate(key, ctx.rotation)
        return query, key, value

    def allowed(self, ctx: Context, queries: int, keys: int, x: Tensor) -> Allowed | None:
        """Return the mask, or None where the sight alone decides and the kernel knows it."""
        if self.mask.open:
            return ctx.allowed
        base = ctx.allowed
        if base is None and self.sight == "past":
            base = past_mask(queries, x.device)
        return self.mask.narrow(base, distance_of(ctx, queries, keys, x.device))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, allowed: Allowed | None) -> Stream:
        """Mix the values by the softmax of the scores."""
        dropout = self.dropout if self.training else 0.0
        mixed = mix(query, key, value, allowed, causal=self.sight == "past", dropout=dropout)
        return self.output(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def mixing_flops(self, length: int) -> int:
        return 4 * self.mask.span(length) * self.heads * self.head_width

    def state_elements(self) -> int:
        return 2 * self.kv_heads * self.head_width
