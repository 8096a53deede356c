"""Tower: embedding, positions, stack of layers and norm; a language model has one, an encoder-decoder two."""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from heddle.core import Config, ConfigError, find, settings
from heddle.core.shapes import Ids, Stream
from heddle.nn.attention import AttentionConfig, ValueResidualConfig
from heddle.nn.base import Context, Module, Place, SelfAttentionConfig, Sight
from heddle.nn.ends import Embedding, EmbeddingConfig, Frames, FullEmbeddingConfig, Images
from heddle.nn.layers import NoNormConfig, NormConfig, base_mask, clamp_padding, query_steps
from heddle.nn.positions import NoPositionConfig, Position, PositionConfig
from heddle.nn.stack import LoopConfig, PlanConfig, PlanOutput, SteppedLoopConfig


@runtime_checkable
class TowerFields(Protocol):
    """The fields that describe a tower."""

    @property
    def plan(self) -> PlanConfig: ...
    @property
    def embedding(self) -> EmbeddingConfig: ...
    @property
    def position(self) -> PositionConfig: ...
    @property
    def norm(self) -> NormConfig: ...


@settings
class TowerConfig(Config):
    """One side of an encoder-decoder.

    plan: the layers.
    embedding: how ids become vectors.
    position: how the model knows the order of tokens.
    norm: normalization after the last layer.
    """

    plan: PlanConfig
    embedding: EmbeddingConfig = FullEmbeddingConfig()
    position: PositionConfig = NoPositionConfig()
    norm: NormConfig = NoNormConfig()


class BaseTower(Module):
    """norm(stack(embedding(ids) + positions)); the names of these four modules are part of the checkpoint format."""

    sight: Sight
    embedding_kind: str | None
    reads: str  # what the embedding reads: ids, frames, images
    item_shape: tuple[int, ...] | None  # of a frame or an image that the embedding reads
    embedding: Embedding
    position: Position

    def build_tower(self, config: TowerFields, vocab: int | None, width: int, place: Place) -> None:
        """Build the four modules."""
        self.sight, self.embedding_kind = place.sight, config.embedding.kind
        self.item_shape, self.reads = config.embedding.item_shape, config.embedding.reads
        place = place_for(config, width, place)
        self.embedding = config.embedding.build(vocab if config.embedding.reads == "ids" else None, width, place)
        self.position = config.position.build(width, place)
        self.stack = config.plan.build(width, place.child("stack") if place.path else place)
        self.norm = config.norm.build(width)

    def run_tower(
        self,
        inputs: Ids | Images | Frames,
        ctx: Context,
        compute: torch.dtype | None,
        feed: Callable[[Stream], Stream] | None = None,
    ) -> tuple[PlanOutput, Context]:
        """Return the last layer's vectors and the new context; `feed` adds to the embedded input."""
        length = self.embedding.length(inputs)
        if ctx.state is None:  # with a state, `new_state` has reserved it
            self.position.reserve(length)
        if ctx.positions is None and ctx.state is not None:
            ctx = dataclasses.replace(ctx, positions=clamp_padding(query_steps(ctx, length, inputs.device), ctx, at=0))
        given = ctx  # with the lengths of the inputs, of which some embeddings make fewer vectors
        ctx = dataclasses.replace(ctx, lengths=self.embedding.real_lengths(inputs, ctx.lengths))
        ctx = dataclasses.replace(ctx, allowed=base_mask(ctx, length, self.sight, inputs.device))
        x = self.embedding(inputs, given)
        x = x if compute is None else x.to(compute)
        x, ctx = self.position(x if feed is None else feed(x), ctx)
        x, ctx = self.stack(x, ctx.note("entry", x) if ctx.keep else ctx)
        return self.norm(x), ctx


class Tower(BaseTower):
    """One side of an encoder-decoder."""

    def __init__(self, config: TowerConfig, vocab: int, width: int, place: Place) -> None:
        super().__init__()
        self.build_tower(config, vocab, width, place)


def shares_layers(plan: PlanConfig) -> bool:
    """Tell whether some layers share their weights: a loop runs them several times."""
    return bool(find(plan, LoopConfig) or find(plan, SteppedLoopConfig))


def place_for(config: TowerFields, width: int, place: Place) -> Place:
    """Return the place with the heads of the plan's attention; refuse positions that do not fit it."""
    headed, position = find(config.plan, SelfAttentionConfig), config.position
    for mixer in headed:
        if position.provides not in mixer.accepts:
            accepted = " or the ".join(sorted(mixer.accepts))
            fault = f"{position.kind} acts on the {position.provides}, but {mixer.kind} accepts only the {accepted}"
            raise ConfigError("position", fault)
    if position.provides == "relation" and shares_layers(config.plan):
        raise ConfigError("position", f"{position.kind} has a table per layer and cannot be used in a loop")
    if position.provides != "stream" and not headed:
        raise ConfigError("position", want="none, or attention in the plan", got=position.kind)
    _check_values(config.plan, headed, width)
    widths = sorted({mixer.head_width_at(width) for mixer in headed})
    if len(widths) > 1 and position.provides in ("rotation", "relation"):
        raise ConfigError("plan", want="one head width, since layers share positions", got=widths)
    heads = tuple(sorted({mixer.heads for mixer in headed}))
    return dataclasses.replace(place, depth=config.plan.depth(), head_width=widths[0] if widths else None, heads=heads)


def _check_values(plan: PlanConfig, headed: list[SelfAttentionConfig], width: int) -> None:
    """Refuse value residuals in shared layers, and between layers whose values differ in size."""
    mixing = [one for one in headed if isinstance(one, AttentionConfig) and isinstance(one.values, ValueResidualConfig)]
    if mixing and shares_layers(plan):
        raise ConfigError("values", want="plain in the layers of a loop", got="value_residual")
    counts = sorted({(one.kv_heads or one.heads) * one.head_width_at(width) for one in mixing})
    if len(counts) > 1:
        want = "the same kv_heads in all layers that use the first layer's values"
        raise ConfigError("values", want=want, got=counts)
