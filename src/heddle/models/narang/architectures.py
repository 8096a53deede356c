"""Edits to other architectures: convolutions, synthesizers, experts, Funnel, Universal Transformer (Narang 2021)."""

from collections.abc import Callable

from heddle.core import find, replace, swap
from heddle.models.narang.edits import (
    NORM,
    UNTIED,
    Edit,
    TowerEdit,
    channels,
    edit_blocks,
    edit_towers,
    in_layers,
    layers_of,
    with_norm,
)
from heddle.models.networks import INPUTS, EncoderDecoderConfig, TowerConfig, pre_norm
from heddle.nn.attention import (
    AloneConfig,
    AttentionConfig,
    BlendConfig,
    BranchedAttentionConfig,
    BranchedCrossAttentionConfig,
    ClippedBranchWeightsConfig,
    CrossAttentionConfig,
    PatternConfig,
    SynthesizerConfig,
)
from heddle.nn.base import ChannelConfig, FixupInitConfig, MixerConfig, NarangInitConfig
from heddle.nn.channels import (
    ExpertsConfig,
    FeedForwardConfig,
    FixupFeedForwardConfig,
    LoadBalancingLossConfig,
    NarangFactorConfig,
    ProductKeysConfig,
    RouterConfig,
)
from heddle.nn.convolution import (
    DynamicConvolutionConfig,
    EvolvedDecoderConvolutionConfig,
    EvolvedEncoderConvolutionConfig,
    GatedLinearUnitConfig,
    LightweightConvolutionConfig,
)
from heddle.nn.layers import LayerNormConfig, RMSNormConfig, ShiftConfig, ShiftScaleConfig
from heddle.nn.positions import NoPositionConfig, T5PositionConfig
from heddle.nn.stack import (
    ChainConfig,
    JoinConfig,
    NarangGateConfig,
    PoolConfig,
    RepeatConfig,
    ReZeroConfig,
    ScaledConfig,
    SteppedLoopConfig,
    SumConfig,
)


def mixers(make: Callable[[AttentionConfig], MixerConfig]) -> Edit:
    """Replace self-attention by another mixer in both towers."""
    return swap(AttentionConfig, make)


def without_positions(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Remove all positions."""
    return swap(T5PositionConfig, lambda _: NoPositionConfig())(c)


def dynamic_convolution(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Dynamic convolution, with feed-forwards of a sixth of the baseline's width."""
    made = mixers(lambda _: DynamicConvolutionConfig(maps=2))(without_positions(c))
    return swap(FeedForwardConfig, lambda f: replace(f, hidden=(f.hidden or 0) // 6))(made)


def lightweight_convolution(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Lightweight convolution."""
    return mixers(lambda _: LightweightConvolutionConfig(maps=2))(without_positions(c))


ALONE = AloneConfig()


def synthesizer(pattern: PatternConfig, blend: BlendConfig = ALONE) -> Edit:
    """Synthesizer with 2/3 of the heads, each twice as wide, as the defaults of the layer had it."""

    def edit(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
        def make(a: AttentionConfig) -> SynthesizerConfig:
            heads, head_width = max(1, a.heads * 2 // 3), 2 * a.head_width_at(c.width)
            return SynthesizerConfig(heads=heads, head_width=head_width, pattern=pattern, blend=blend)

        return mixers(make)(c)

    return edit


def evolved(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Evolved Transformer: each of its blocks replaces two layers."""
    attention, cross = find(c.encoder.plan, AttentionConfig)[0], find(c.decoder.plan, CrossAttentionConfig)[0]
    channel, times = find(c.encoder.plan, FeedForwardConfig)[0], max(1, layers_of(c.encoder.plan)[1] // 2)
    width = attention.head_width_at(c.width)
    wide = replace(attention, heads=2 * attention.heads, head_width=width)
    convolutions = EvolvedEncoderConvolutionConfig(norm=NORM), EvolvedDecoderConvolutionConfig(norm=NORM)
    reading = pre_norm(GatedLinearUnitConfig(), convolutions[0], attention, channel, norm=NORM)
    writing = pre_norm(
        SumConfig(parts=(wide, cross)),
        convolutions[1],
        attention,
        cross,
        replace(channel, activation="swish"),
        norm=NORM,
    )
    return replace(
        c,
        encoder=replace(c.encoder, plan=RepeatConfig(body=reading, times=times)),
        decoder=replace(c.decoder, plan=RepeatConfig(body=writing, times=times)),
    )


def universal(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Universal Transformer: one gated block for each tower, run twice as often as the baseline is deep, plus 2 + 2."""

    def change(tower: TowerConfig) -> TowerConfig:
        body, times = layers_of(swap(JoinConfig, NarangGateConfig(norm=NORM))(tower.plan))
        return replace(tower, plan=SteppedLoopConfig(body=body, turns=2 * times, before=2, after=2))

    return replace(edit_towers(change)(c), head=UNTIED, ties=(INPUTS,))


def experts(router: RouterConfig, wider: float, capacity: tuple[float, float]) -> Edit:
    """Replace every fourth feed-forward by 32 experts; capacities are the encoder's and the decoder's."""

    def side(factor: float) -> TowerEdit:
        def make(f: FeedForwardConfig) -> ChannelConfig:
            inner = FeedForwardConfig(hidden=int((f.hidden or 0) * wider))
            return ExpertsConfig(
                experts=32,
                expert=inner,
                router=router,
                capacity=NarangFactorConfig(factor=factor),
                balance=LoadBalancingLossConfig(counted="first"),
            )

        return in_layers(lambda layer, depth: layer % min(4, depth) == 0, channels(make))

    return lambda c: replace(
        c, encoder=side(capacity[0])(c.encoder), decoder=side(capacity[1])(c.decoder), init=NarangInitConfig(gain=0.1)
    )


def product_keys(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Replace the last feed-forward but one of the decoder by a product-key memory."""
    keys = (find(c, FeedForwardConfig)[0].hidden or 0) // 6
    memory = ProductKeysConfig(keys=keys, top_k=min(32, keys))
    edit = in_layers(lambda layer, depth: layer == max(1, depth - 1), channels(lambda _: memory))
    return replace(c, decoder=edit(c.decoder))


def funnel(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Funnel Transformer: halve the encoder's rows after the first self-attention of stages two and three."""
    body, times = layers_of(swap(LayerNormConfig, lambda _: RMSNormConfig())(c.encoder.plan))
    stage = max(1, times // 3)
    first, *rest = body.branches
    turn = ChainConfig(bodies=(replace(body, branches=(first,)), PoolConfig(), replace(body, branches=tuple(rest))))
    bodies = tuple(turn if layer in (stage, 2 * stage) else body for layer in range(times))
    encoder = replace(c.encoder, plan=ChainConfig(bodies=bodies), norm=RMSNormConfig())
    return replace(c, encoder=encoder)


CLIPPED = ClippedBranchWeightsConfig()


def weighted(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Weighted Transformer: a feed-forward for every head, shared in the sublayer, summed by learned weights."""

    def change(tower: TowerConfig) -> TowerConfig:
        channel = find(tower.plan, FeedForwardConfig)[0]
        kept = edit_blocks(lambda b: replace(b, branches=tuple(x for x in b.branches if x.part != channel)))(tower)
        own = swap(AttentionConfig, lambda a: BranchedAttentionConfig(attention=a, channel=channel, shares=CLIPPED))
        cross = swap(
            CrossAttentionConfig, lambda a: BranchedCrossAttentionConfig(attention=a, channel=channel, shares=CLIPPED)
        )
        return cross(own(kept))

    return edit_towers(change)(c)


REZERO = swap(JoinConfig, ReZeroConfig())


def fixup(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Fixup: no norms, but scalar shifts and scales, and an initialization that is stable without norms."""
    made = swap(FeedForwardConfig, lambda f: FixupFeedForwardConfig(hidden=f.hidden))(c)
    made = swap(JoinConfig, ScaledConfig())(with_norm(ShiftConfig())(made))
    depth = c.encoder.plan.depth(), c.decoder.plan.depth()
    return replace(
        made,
        encoder=replace(made.encoder, norm=ShiftScaleConfig()),
        init=FixupInitConfig(branches=2 * depth[0] + 3 * depth[1]),
    )


def unchanged(c: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Change nothing."""
    return c
