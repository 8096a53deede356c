"""Latent attention: keys and values from one small vector a token, all that a cache need hold (DeepSeek-V2, 2024).

A part of each query and one key for all heads carry the rotation, for a turned key cannot be had from the small vector.
"""

import torch
from torch import Tensor, nn

from heddle.core import Config, ConfigError, check_at_least, check_share, part, settings
from heddle.core.shapes import Float, Stream
from heddle.nn.attention.attention import allowed_by
from heddle.nn.attention.cached import recall
from heddle.nn.attention.projections import ByHeads, Looking, ProjectionsConfig, by_heads
from heddle.nn.attention.scores import DotScoreConfig, Meeting, Scores
from heddle.nn.base import Context, Linear, Module, Place, Role, SelfAttentionConfig
from heddle.nn.layers import FullMaskConfig, MaskConfig, NoNormConfig, NormConfig, RMSNormConfig
from heddle.nn.positions import rotate
from heddle.nn.state import Cache


@settings
class LatentWidthsConfig(Config):
    """The widths of one head."""

    key: int  # of the part of a key that knows no position
    rotary: int  # of the part that is turned
    value: int

    def __post_init__(self) -> None:
        check_at_least(1, key=self.key, rotary=self.rotary, value=self.value)


@part("latent_attention")
class LatentAttentionConfig(SelfAttentionConfig):
    """Every position leaves one small vector, from which every head makes its own key and value."""

    accepts = frozenset({"stream", "rotation", "bias"})

    heads: int
    latent: int  # width of what a token leaves
    widths: LatentWidthsConfig
    query_latent: int | None = None  # width that queries pass through; None: they come straight from the stream
    projections: ProjectionsConfig = ProjectionsConfig(norm=RMSNormConfig())  # bias: of the maps from the stream
    scale: float | None = None  # of the scores; None: 1 / sqrt(key + rotary)
    mask: MaskConfig = FullMaskConfig()
    dropout: float = 0.0  # of the weights

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, latent=self.latent, query_latent=self.query_latent)
        check_share(dropout=self.dropout)
        across = self.projections.across
        if not isinstance(across, NoNormConfig):
            raise ConfigError("projections.across", want="none, for `norm` is of whole latents", got=across.kind)

    def head_width_at(self, width: int) -> int:
        """Return the width that is turned: all that positions need to know."""
        return self.widths.rotary

    def build(self, width: int, place: Place) -> "LatentAttention":
        return LatentAttention(width, self, place)


class LatentAttention(Looking):
    """output(softmax((query · key(latent) + turned query · turned key) * scale) · value(latent))."""

    def __init__(self, width: int, config: LatentAttentionConfig, place: Place) -> None:
        super().__init__()
        self.heads, self.widths, self.latent_width = config.heads, config.widths, config.latent
        self.mask, self.sight, self.dropout = config.mask, place.sight, config.dropout
        bias, norm = config.projections.bias, config.projections.norm
        asked = self.heads * (self.widths.key + self.widths.rotary)
        if config.query_latent is None:
            self.query: nn.Module = Linear(width, asked)
        else:
            self.query = Squeeze(width, config.query_latent, asked, bias, norm)
        self.latent = Linear(width, config.latent, bias=bias)
        self.latent_norm = norm.build(config.latent)
        self.turned = Linear(width, self.widths.rotary, bias=bias)
        self.key = Linear(config.latent, self.heads * self.widths.key)
        self.value = Linear(config.latent, self.heads * self.widths.value)
        self.output = Linear(
            self.heads * self.widths.value, width, bias=config.projections.output_bias, role=Role.INTO_STREAM
        )
        self.score = DotScoreConfig(scale=config.scale).build(self.heads, self.widths.key + self.widths.rotary)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.put(self.mix(self.meet(x, ctx)))

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, Cache]:
        """Attend over what is cached, the latents and the turned keys, and what is new."""
        query, met = self.ask(x, ctx), recall(self.leave(x, ctx), ctx, slot, self.mask.ring())
        (latent, turned), ctx = met.kept, met.ctx
        if x.shape[1] > 1:
            return self.put(self.mix(self.between(query, *self.make(latent, turned), ctx))), met.cache
        # one query costs less to bring to the latents than all latents to their keys and values
        mixed = self.mix(self.between(self.absorb(query), torch.cat((latent, turned), dim=-1), latent, ctx))
        return self.put(mixed @ self.per_head(self.value, mixed).transpose(-1, -2)), met.cache

    def meet(self, x: Stream, ctx: Context) -> Meeting:
        """Return who asks, who answers and what lies between them, without a state."""
        return self.between(self.ask(x, ctx), *self.make(*self.leave(x, ctx)), ctx)

    def weights(self, x: Stream, ctx: Context) -> Scores:
        """Return how much each query takes from each key."""
        return self.score.weights(self.meet(x, ctx))

    def ask(self, x: Stream, ctx: Context) -> ByHeads:
        """Return the queries: what knows no position, then what is turned."""
        query = by_heads(self.query(x), self.heads)
        still, turned = query.split((self.widths.key, self.widths.rotary), dim=-1)
        return torch.cat((still, self.turn(turned, ctx)), dim=-1)

    def leave(self, x: Stream, ctx: Context) -> tuple[ByHeads, ByHeads]:
        """Return what each token leaves for all later ones: its latent and its turned key, as heads of one."""
        latent, turned = self.latent_norm(self.latent(x))[:, None], self.turned(x)[:, None]
        return latent, self.turn(turned, ctx)

    def turn(self, x: ByHeads, ctx: Context) -> ByHeads:
        """Return the part of queries or keys that knows its position, turned by it."""
        return x if ctx.rotation is None else rotate(x, ctx.rotation.for_mask(full=self.mask.open))

    def make(self, latent: ByHeads, turned: ByHeads) -> tuple[ByHeads, ByHeads]:
        """Return every head's keys and values."""
        key, value = (by_heads(to(latent[:, 0]), self.heads) for to in (self.key, self.value))
        return torch.cat((key, turned.expand(-1, self.heads, -1, -1)), dim=-1), value

    def absorb(self, query: ByHeads) -> ByHeads:
        """Return queries that meet latents as these queries meet the keys made of them."""
        still, turned = query.split((self.widths.key, self.widths.rotary), dim=-1)
        return torch.cat((still @ self.per_head(self.key, still), turned), dim=-1)

    def per_head(self, to: Linear, like: Tensor) -> Float[Tensor, "heads outputs latent"]:
        """Return each head's own matrix out of the latents."""
        return to.dense_weight(like.dtype).unflatten(0, (self.heads, -1))  # type: ignore[no-any-return]

    def between(self, query: Tensor, key: Tensor, value: Tensor, ctx: Context) -> Meeting:
        """Return the meeting, with what the context says of each query and key."""
        allowed = allowed_by(self.mask, self.sight, ctx, query.shape[2], key)
        bias = None if ctx.bias is None else ctx.bias[self.heads]
        return Meeting(query, key, value, allowed, self.sight == "past", bias)

    def mix(self, meeting: Meeting) -> ByHeads:
        """Return what each head takes from the values."""
        return self.score.mix(meeting, self.dropout if self.training else 0.0)

    def put(self, mixed: ByHeads) -> Stream:
        """Return what the heads together add to the stream."""
        return self.output(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def mixing_flops(self, length: int) -> int:
        return 2 * self.mask.span(length) * self.heads * (self.widths.key + self.widths.rotary + self.widths.value)

    def state_elements(self) -> int:
        return self.latent_width + self.widths.rotary


class Squeeze(Module):
    """up(norm(down(x)))."""

    def __init__(self, width: int, latent: int, outputs: int, bias: bool, norm: NormConfig) -> None:
        super().__init__()
        self.down, self.norm, self.up = Linear(width, latent, bias=bias), norm.build(latent), Linear(latent, outputs)

    def forward(self, x: Stream) -> Float[Tensor, "batch length outputs"]:
        return self.up(self.norm(self.down(x)))  # type: ignore[no-any-return]
