"""Multi-head latent attention (MLA, DeepSeek-V2, 2024): keys and values come from one small cached vector per token.

Rotary embeddings apply to a separate part of each query and to one key shared by all heads, for a rotated key cannot be
computed from the latent vector.
"""

import torch
from torch import Tensor, nn

from heddle.core import Config, ConfigError, Positive, Share, part, settings
from heddle.core.shapes import Float, Stream
from heddle.nn.attention.backends import AttentionInputs
from heddle.nn.attention.kv_update import update_kv_cache
from heddle.nn.attention.projections import AttentionPart, PerHead, ProjectionsConfig
from heddle.nn.attention.scores import DotScoreConfig
from heddle.nn.base import Context, Linear, Module, Place, Role, SelfAttentionConfig
from heddle.nn.layers import FullMaskConfig, MaskConfig, NoNormConfig, NormConfig, RMSNormConfig, allowed_keys
from heddle.nn.positions import apply_rotary
from heddle.nn.state import KVCache


@settings
class LatentWidthsConfig(Config):
    """The widths of one head.

    key: width of the part of a key without rotary embedding.
    rotary: width of the part of a key with rotary embedding.
    value: width of a value.
    """

    key: Positive
    rotary: Positive
    value: Positive


@part("latent_attention")
class LatentAttentionConfig(SelfAttentionConfig):
    """Latent attention: every token is compressed to a vector from which each head computes its key and value.

    heads: how many attention heads.
    latent: width of the cached vector.
    widths: the widths of one head.
    query_latent: width of the low-rank query projection; None: one matrix.
    projections: biases and norms of the projections from the stream.
    scale: factor of the scores; None: 1 / sqrt(key + rotary).
    mask: which positions are seen, beyond causality and documents.
    dropout: attention dropout: rate on the softmax weights.
    """

    accepts = frozenset({"stream", "rotation", "bias"})

    heads: Positive
    latent: Positive
    widths: LatentWidthsConfig
    query_latent: Positive | None = None
    projections: ProjectionsConfig = ProjectionsConfig(norm=RMSNormConfig())
    scale: float | None = None
    mask: MaskConfig = FullMaskConfig()
    dropout: Share = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        across = self.projections.across
        if not isinstance(across, NoNormConfig):
            raise ConfigError(
                "projections.across", want="none, because `norm` normalizes whole latents", got=across.kind
            )

    def head_width_at(self, width: int) -> int:
        """Return the width with rotary embedding: all that positions need to know."""
        return self.widths.rotary

    def build(self, width: int, place: Place) -> "LatentAttention":
        return LatentAttention(width, self, place)


class LatentAttention(AttentionPart):
    """output(softmax((query · key(latent) + rotary query · rotary key) * scale) · value(latent))."""

    def __init__(self, width: int, config: LatentAttentionConfig, place: Place) -> None:
        super().__init__()
        self.heads, self.widths, self.latent_width = config.heads, config.widths, config.latent
        self.mask, self.sight, self.dropout = config.mask, place.sight, config.dropout
        bias, norm = config.projections.bias, config.projections.norm
        query_width = self.heads * (self.widths.key + self.widths.rotary)
        if config.query_latent is None:
            self.query: nn.Module = Linear(width, query_width)
        else:
            self.query = LowRankQuery(width, config.query_latent, query_width, bias, norm)
        self.latent = Linear(width, config.latent, bias=bias)
        self.latent_norm = norm.build(config.latent)
        self.turned = Linear(width, self.widths.rotary, bias=bias)
        self.key = Linear(config.latent, self.heads * self.widths.key)
        self.value = Linear(config.latent, self.heads * self.widths.value)
        inner, bias = self.heads * self.widths.value, config.projections.output_bias
        self.output = Linear(inner, width, bias=bias, role=Role.INTO_STREAM)
        self.score = DotScoreConfig(scale=config.scale).build(self.heads, self.widths.key + self.widths.rotary)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.project_output(self.attend(self.attention_inputs(x, ctx)))

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, KVCache]:
        """Attend over the cached latents and rotary keys and the new ones; one query attends to latents."""
        query, cached = self.project_query(x, ctx), update_kv_cache(self.compress(x, ctx), ctx, slot, self.mask.ring())
        (latent, rotary), ctx = cached.tensors, cached.ctx
        if x.shape[1] > 1:
            heads = self.attend(self.inputs_from(query, *self.expand_latent(latent, rotary), ctx))
            return self.project_output(heads), cached.cache
        # one query costs less to project to the latent space than all latents to their keys and values
        latents = self.attend(self.inputs_from(self.absorb(query), torch.cat((latent, rotary), dim=-1), latent, ctx))
        return self.project_output(latents @ self.head_matrices(self.value, latents).transpose(-1, -2)), cached.cache

    def attention_inputs(self, x: Stream, ctx: Context) -> AttentionInputs:
        """Return queries, keys and values with mask and bias, without a state."""
        return self.inputs_from(self.project_query(x, ctx), *self.expand_latent(*self.compress(x, ctx)), ctx)

    def project_query(self, x: Stream, ctx: Context) -> PerHead:
        """Return the queries: the part without position, then the part with rotary embedding."""
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        content, rotary = query.split((self.widths.key, self.widths.rotary), dim=-1)
        return torch.cat((content, self.rotate(rotary, ctx)), dim=-1)

    def compress(self, x: Stream, ctx: Context) -> tuple[PerHead, PerHead]:
        """Return what is cached of each token: its latent and its rotary key, as one head."""
        latent, rotary = self.latent_norm(self.latent(x))[:, None], self.turned(x)[:, None]
        return latent, self.rotate(rotary, ctx)

    def rotate(self, x: PerHead, ctx: Context) -> PerHead:
        """Apply rotary embeddings."""
        return x if ctx.rotation is None else apply_rotary(x, ctx.rotation.for_mask(full=self.mask.is_full))

    def expand_latent(self, latent: PerHead, rotary: PerHead) -> tuple[PerHead, PerHead]:
        """Return every head's keys and values (up-projection)."""
        projected = (linear(latent[:, 0]) for linear in (self.key, self.value))
        key, value = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in projected)
        return torch.cat((key, rotary.expand(-1, self.heads, -1, -1)), dim=-1), value

    def absorb(self, query: PerHead) -> PerHead:
        """Return queries whose product with latents equals that of `query` with keys (matrix absorption)."""
        content, rotary = query.split((self.widths.key, self.widths.rotary), dim=-1)
        return torch.cat((content @ self.head_matrices(self.key, content), rotary), dim=-1)

    def head_matrices(self, linear: Linear, like: Tensor) -> Float[Tensor, "heads outputs latent"]:
        """Return each head's matrix of a projection from latents."""
        return linear.dense_weight(like.dtype).unflatten(0, (self.heads, -1))  # type: ignore[no-any-return]

    def inputs_from(self, query: Tensor, key: Tensor, value: Tensor, ctx: Context) -> AttentionInputs:
        """Return the inputs with mask and bias from the context."""
        allowed = allowed_keys(self.mask, self.sight, ctx, query.shape[2], key)
        bias = None if ctx.bias is None else ctx.bias[self.heads]
        return AttentionInputs(query, key, value, allowed, self.sight == "past", bias)

    def attend(self, inputs: AttentionInputs) -> PerHead:
        """Return each head's values, weighed."""
        return self.score.attend(inputs, self.dropout if self.training else 0.0)

    def project_output(self, heads: PerHead) -> Stream:
        """Return the output projection of all heads."""
        return self.output(heads.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def mixing_flops(self, length: int) -> int:
        per_key = 2 * self.heads * (self.widths.key + self.widths.rotary + self.widths.value)
        return self.mask.keys_per_query(length) * per_key

    def state_elements(self) -> int:
        return self.latent_width + self.widths.rotary


class LowRankQuery(Module):
    """Low-rank query projection: up(norm(down(x)))."""

    def __init__(self, width: int, latent: int, outputs: int, bias: bool, norm: NormConfig) -> None:
        super().__init__()
        self.down, self.norm, self.up = Linear(width, latent, bias=bias), norm.build(latent), Linear(latent, outputs)

    def forward(self, x: Stream) -> Float[Tensor, "batch length outputs"]:
        return self.up(self.norm(self.down(x)))  # type: ignore[no-any-return]
