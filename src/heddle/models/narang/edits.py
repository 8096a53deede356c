"""Edits: functions from config to config, of which the variants of Narang et al. (2021) are composed."""

from collections.abc import Callable
from fractions import Fraction
from functools import reduce

from heddle.core import replace, swap
from heddle.models.networks import EncoderDecoderConfig, TieConfig, TowerConfig
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig, head_width_for
from heddle.nn.base import ChannelConfig
from heddle.nn.channels import FeedForwardConfig, GatedFeedForwardConfig
from heddle.nn.ends import (
    AdaptiveEmbeddingConfig,
    AdaptiveHeadConfig,
    ClusterConfig,
    ClusteredHeadConfig,
    EmbeddingConfig,
    FactorizedEmbeddingConfig,
    FactorizedHeadConfig,
    HeadConfig,
    SoftmaxHeadConfig,
)
from heddle.nn.layers import LayerNormConfig, NoNormConfig, NormConfig
from heddle.nn.stack import BlockConfig, ChainConfig, LoopConfig, PlanConfig, RepeatConfig

Edit = Callable[[EncoderDecoderConfig], EncoderDecoderConfig]
TowerEdit = Callable[[TowerConfig], TowerConfig]

NORM = LayerNormConfig(eps=1e-6)


def compose(*edits: Edit) -> Edit:
    """Compose edits, the first one first."""
    return lambda config: reduce(lambda made, edit: edit(made), edits, config)


def edit_towers(change: Callable[[TowerConfig], TowerConfig]) -> Edit:
    """Apply the same change to both towers."""
    return lambda c: replace(c, encoder=change(c.encoder), decoder=change(c.decoder))


def with_activation(activation: str) -> Edit:
    """Use another activation in every feed-forward."""
    return swap(FeedForwardConfig, lambda f: replace(f, activation=activation))


def with_gate(activation: str) -> Edit:
    """Replace every feed-forward by a gated linear unit of 2/3 of its width, which has as many weights."""
    return swap(
        FeedForwardConfig,
        lambda f: GatedFeedForwardConfig(hidden=(f.hidden or 0) * 2 // 3, activation=activation, bias=True),
    )


def with_norm(norm: NormConfig) -> Edit:
    """Replace every norm."""
    return swap(NormConfig, lambda old: old if isinstance(old, NoNormConfig) else norm)


def layers_of(plan: PlanConfig) -> tuple[BlockConfig, int]:
    """Return the block and the number of layers of a tower of the baseline."""
    if not isinstance(plan, RepeatConfig) or not isinstance(plan.body, BlockConfig):
        raise TypeError(f"want the plan of the baseline, one block repeated, got {plan}")
    return plan.body, plan.times


def share_layers(tower: TowerConfig) -> TowerConfig:
    """Share one block among all layers."""
    body, times = layers_of(tower.plan)
    return replace(tower, plan=LoopConfig(body=body, turns=times))


def in_layers(chosen: Callable[[int, int], bool], edit: Callable[[BlockConfig], BlockConfig]) -> TowerEdit:
    """Edit the blocks of some layers, chosen by (layer, layers), counted from one."""

    def change(tower: TowerConfig) -> TowerConfig:
        body, times = layers_of(tower.plan)
        bodies = tuple(edit(body) if chosen(layer, times) else body for layer in range(1, times + 1))
        return replace(tower, plan=ChainConfig(bodies=bodies))

    return change


def channels(make: Callable[[FeedForwardConfig], ChannelConfig]) -> Callable[[BlockConfig], BlockConfig]:
    """Replace a block's feed-forward by another channel."""
    return swap(FeedForwardConfig, make)


def edit_blocks(change: Callable[[BlockConfig], BlockConfig]) -> TowerEdit:
    """Apply the same change to every block of a tower."""
    return lambda tower: replace(tower, plan=swap(BlockConfig, change)(tower.plan))


def with_depth(ratio: Fraction) -> Edit:
    """Change the number of layers at equal cost: twice as many have half the heads and half the hidden width."""

    def edit(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
        def attention(a: AttentionConfig) -> AttentionConfig:
            return replace(a, heads=_times(a.heads, 1 / ratio), head_width=a.head_width_at(c.width))

        def cross(a: CrossAttentionConfig) -> CrossAttentionConfig:
            return replace(a, heads=_times(a.heads, 1 / ratio), head_width=head_width_for(a, c.width))

        for change in (
            swap(AttentionConfig, attention),
            swap(CrossAttentionConfig, cross),
            swap(FeedForwardConfig, lambda f: replace(f, hidden=_times(f.hidden or 0, 1 / ratio))),
            swap(RepeatConfig, lambda r: replace(r, times=_times(r.times, ratio))),
        ):
            c = change(c)
        return c

    return edit


def _times(size: int, ratio: Fraction) -> int:
    return max(1, round(size * ratio))


# --- sharing and embeddings -------------------------------------------------------------------------------------------

UNTIED = SoftmaxHeadConfig()


def ties(head: HeadConfig, *pairs: TieConfig) -> Edit:
    """Use another head and another weight tying."""
    return lambda c: replace(c, head=head, ties=pairs)


def embeddings(make: Callable[[EncoderDecoderConfig], EmbeddingConfig]) -> Edit:
    """Use other input embeddings on both sides."""
    return lambda c: edit_towers(lambda tower: replace(tower, embedding=make(c)))(c)


def factorized(c: EncoderDecoderConfig) -> EmbeddingConfig:
    """Return an embedding whose table is a sixth as wide as the stream: 128 of 768."""
    return FactorizedEmbeddingConfig(inner=c.width // 6, deviation=1.0)


def tie_weights(*names: str, head: bool = True) -> tuple[TieConfig, ...]:
    """Tie the named weights of both embeddings, and of the head too."""
    sides = ("decoder.embedding", "head") if head else ("decoder.embedding",)
    return tuple(TieConfig(share=f"{side}.{name}", of=f"encoder.embedding.{name}") for side in sides for name in names)


def factorized_tied(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Factorize the table that inputs and output share."""
    head = FactorizedHeadConfig(inner=c.width // 6, power=-0.5, deviation=1.0)
    return replace(embeddings(factorized)(c), head=head, ties=tie_weights("weight", "map.weight"))


def factorized_input(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Factorize the table that the inputs share; the output has its own full matrix."""
    return replace(embeddings(factorized)(c), head=UNTIED, ties=tie_weights("weight", "map.weight", head=False))


def clusters(c: EncoderDecoderConfig, *sizes: tuple[int | None, int]) -> tuple[ClusterConfig, ...]:
    """Return clusters given as (ids of the paper's 32,128, the stream's width over their width)."""
    share = c.vocab / 32_128
    return tuple(
        ClusterConfig(
            size=None if ids is None else max(1, round(ids * share)),
            width=None if narrower == 1 else max(1, c.width // narrower),
        )
        for ids, narrower in sizes
    )


def adaptive_input(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Adaptive input embeddings, tied to an ordinary softmax."""
    found = clusters(c, (2500, 1), (6000, 3), (None, 12))
    made = embeddings(lambda _: AdaptiveEmbeddingConfig(clusters=found, deviation=1.0))(c)
    head = ClusteredHeadConfig(clusters=found, power=-0.5, deviation=1.0)
    return replace(made, head=head, ties=cluster_ties(found))


def cluster_ties(found: tuple[ClusterConfig, ...]) -> tuple[TieConfig, ...]:
    """Tie all tables and projections of clusters."""
    names = [f"clusters.{i}.weight" for i in range(len(found))]
    names += [f"clusters.{i}.map.weight" for i, cluster in enumerate(found) if cluster.width is not None]
    return tie_weights(*names)


def adaptive_softmax(*narrower: int) -> Edit:
    """Adaptive softmax; each tail learns from a quarter of a row's targets at most, as the paper ran it."""

    def edit(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
        found = clusters(c, *zip((2500, 6000, None, 128), narrower, strict=True))
        made = embeddings(lambda _: AdaptiveEmbeddingConfig(clusters=found, deviation=1.0))(c)
        head = AdaptiveHeadConfig(clusters=found, power=-0.5, deviation=1.0, share=0.25)
        return replace(made, head=head, ties=cluster_ties(found))

    return edit
