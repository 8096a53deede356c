"""Transformers besides GPT-2 and Llama: GPT, GPT-3, Mistral, Qwen3, the Transformer of 2017, T5, BART, Marian."""

from heddle.core import find, replace, swap
from heddle.models.networks import (
    BIASED,
    INPUTS,
    ONE_TABLE,
    TIED,
    EncoderDecoderConfig,
    LanguageModelConfig,
    TowerConfig,
    post_norm,
    pre_norm,
    with_entry,
)
from heddle.models.presets.decoders import gpt2, llama
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig, DotScoreConfig, ProjectionsConfig
from heddle.nn.base import ChannelConfig, NarangInitConfig, XavierInitConfig
from heddle.nn.channels import FeedForwardConfig, GatedFeedForwardConfig, IdentityConfig
from heddle.nn.ends import FullEmbeddingConfig, SoftmaxHeadConfig
from heddle.nn.layers import FullMaskConfig, LayerNormConfig, MaskConfig, NormConfig, RMSNormConfig, SlidingWindowConfig
from heddle.nn.positions import LearnedPositionConfig, PositionConfig, SinusoidalPositionConfig, T5PositionConfig
from heddle.nn.stack import BlockConfig, BranchConfig, ChainConfig, RepeatConfig

# --- decoders ---------------------------------------------------------------------------------------------------------


def gpt(
    layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 40_478, context: int = 512, dropout: float = 0.0
) -> LanguageModelConfig:
    """GPT (Radford et al. 2018): post-norm, learned positions, GELU, biases everywhere, tied weights."""
    attention = AttentionConfig(heads=heads, projections=BIASED, dropout=dropout)
    channel = FeedForwardConfig(activation="gelu_tanh", bias=True)
    block = post_norm(attention, channel, norm=LayerNormConfig(), dropout=dropout)
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=with_entry(block, layers, dropout),
        position=LearnedPositionConfig(),
        ties=TIED,
    )


def gpt3(
    layers: int = 96,
    width: int = 12_288,
    heads: int = 96,
    vocab: int = 50_257,
    context: int = 2048,
    dropout: float = 0.0,
) -> LanguageModelConfig:
    """GPT-3 (Brown et al. 2020): GPT-2's parts, larger; every second layer has a sliding window."""
    whole = gpt2(layers, width, heads, vocab, context, dropout)

    def narrowed(mask: MaskConfig) -> BlockConfig:
        assert isinstance(whole.plan, RepeatConfig)
        assert isinstance(whole.plan.body, BlockConfig)
        return swap(AttentionConfig, lambda a: replace(a, mask=mask))(whole.plan.body)

    near = narrowed(SlidingWindowConfig(size=min(256, context)))
    bodies = tuple(near if layer % 2 else narrowed(FullMaskConfig()) for layer in range(layers))
    return replace(whole, plan=ChainConfig(bodies=bodies))


def mistral(
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int | None = None,
    hidden: int | None = None,
    vocab: int = 32_000,
    context: int = 8192,
    window: int = 4096,
) -> LanguageModelConfig:
    """Mistral (Jiang et al. 2023): Llama's parts, grouped heads, and attention in a sliding window."""
    made = llama(layers, width, heads, kv_heads, hidden, vocab, context)
    return swap(AttentionConfig, lambda a: replace(a, mask=SlidingWindowConfig(size=min(window, context))))(made)


def qwen3(
    layers: int = 28,
    width: int = 1024,
    heads: int = 16,
    kv_heads: int | None = None,
    head_width: int | None = None,
    hidden: int | None = None,
    vocab: int = 151_936,
    context: int = 32_768,
    tied: bool = True,
) -> LanguageModelConfig:
    """Qwen3 (Yang et al. 2025): Llama's parts, with normed queries and keys and wide heads."""
    made = llama(layers, width, heads, kv_heads, hidden, vocab, context, base=1e6, eps=1e-6, tied=tied)
    norm = ProjectionsConfig(norm=RMSNormConfig(eps=1e-6))
    return swap(AttentionConfig, lambda a: replace(a, head_width=head_width, projections=norm))(made)


# --- encoder-decoders -------------------------------------------------------------------------------------------------


def transformer(
    layers: int = 6,
    width: int = 512,
    heads: int = 8,
    hidden: int | None = None,
    vocab: int = 37_000,
    context: int = 512,
    dropout: float = 0.1,
) -> EncoderDecoderConfig:
    """Transformer (Vaswani et al. 2017): encoder-decoder, post-norm, sinusoidal positions, one table for all."""
    attention, cross = AttentionConfig(heads=heads), CrossAttentionConfig(heads=heads)
    channel = FeedForwardConfig(hidden=hidden, bias=True)

    def tower(*parts: AttentionConfig | CrossAttentionConfig | ChannelConfig) -> TowerConfig:
        return TowerConfig(
            plan=with_entry(post_norm(*parts, norm=LayerNormConfig(), dropout=dropout), layers, dropout),
            embedding=FullEmbeddingConfig(power=0.5),
            position=SinusoidalPositionConfig(),
        )

    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=tower(attention, channel),
        decoder=tower(attention, cross, channel),
        init=XavierInitConfig(),
        ties=ONE_TABLE,
    )


def transformer_pre_norm(
    layers: int = 6,
    width: int = 512,
    heads: int = 8,
    hidden: int | None = None,
    vocab: int = 37_000,
    context: int = 512,
    dropout: float = 0.1,
) -> EncoderDecoderConfig:
    """Transformer of 2017 with its norms before each part (Xiong et al. 2020): steadier in training."""
    made = transformer(layers, width, heads, hidden, vocab, context, dropout)

    def moved(tower: TowerConfig) -> TowerConfig:
        parts = [b.part for b in find(tower.plan, BranchConfig) if not isinstance(b.part, IdentityConfig)]
        plan = with_entry(pre_norm(*parts, norm=LayerNormConfig(), dropout=dropout), layers, dropout)
        return replace(tower, plan=plan, norm=LayerNormConfig())

    return replace(made, encoder=moved(made.encoder), decoder=moved(made.decoder))


def t5(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    head_width: int | None = None,
    hidden: int | None = None,
    vocab: int = 32_128,
    context: int = 512,
    dropout: float = 0.0,
) -> EncoderDecoderConfig:
    """T5 (Raffel et al. 2020): pre-norm RMS, bucketed relative bias, unscaled scores, ReLU, one table for all."""
    score = DotScoreConfig(scale=1.0)
    attention = AttentionConfig(heads=heads, head_width=head_width, score=score, dropout=dropout)
    cross = CrossAttentionConfig(heads=heads, head_width=head_width, score=score, dropout=dropout)
    channel = FeedForwardConfig(hidden=hidden)

    def tower(*parts: AttentionConfig | CrossAttentionConfig | ChannelConfig) -> TowerConfig:
        block = pre_norm(*parts, norm=RMSNormConfig(), dropout=dropout)
        return TowerConfig(plan=with_entry(block, layers, dropout), position=T5PositionConfig(), norm=RMSNormConfig())

    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=tower(attention, channel),
        decoder=tower(attention, cross, channel),
        head=SoftmaxHeadConfig(power=-0.5),
        init=NarangInitConfig(),
        ties=ONE_TABLE,
    )


def t5_1_1(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    head_width: int | None = None,
    hidden: int | None = None,
    vocab: int = 32_128,
    context: int = 512,
    dropout: float = 0.0,
) -> EncoderDecoderConfig:
    """T5 1.1 (Shazeer 2020): T5 with gated GELU and an untied head."""
    made = t5(layers, width, heads, head_width, hidden, vocab, context, dropout)
    gated = GatedFeedForwardConfig(hidden=hidden, activation="gelu_tanh")
    return replace(swap(FeedForwardConfig, lambda _: gated)(made), head=SoftmaxHeadConfig(), ties=(INPUTS,))


def bart(
    layers: int = 6,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    vocab: int = 50_265,
    context: int = 1024,
    dropout: float = 0.0,
) -> EncoderDecoderConfig:
    """BART (Lewis et al. 2020): post-norm, learned positions, normed embeddings, GELU, one table for all."""
    return _like_bart(
        AttentionConfig(heads=heads, projections=BIASED, dropout=dropout),
        CrossAttentionConfig(heads=heads, projections=BIASED, dropout=dropout),
        FeedForwardConfig(hidden=hidden, activation="gelu", bias=True),
        (vocab, width, context, layers, dropout),
        (FullEmbeddingConfig(), LearnedPositionConfig(first=2), LayerNormConfig()),
    )


def marian(
    layers: int = 6,
    width: int = 512,
    heads: int = 8,
    hidden: int | None = None,
    vocab: int = 58_101,
    context: int = 512,
    dropout: float = 0.0,
) -> EncoderDecoderConfig:
    """Marian (Junczys-Dowmunt et al. 2018; OPUS-MT): post-norm, sinusoidal positions, Swish, one table, output bias."""
    made = _like_bart(
        AttentionConfig(heads=heads, projections=BIASED, dropout=dropout),
        CrossAttentionConfig(heads=heads, projections=BIASED, dropout=dropout),
        FeedForwardConfig(hidden=hidden, activation="swish", bias=True),
        (vocab, width, context, layers, dropout),
        (FullEmbeddingConfig(power=0.5), SinusoidalPositionConfig(order="halves"), None),
    )
    return replace(made, head=SoftmaxHeadConfig(bias=True))


def _like_bart(
    attention: AttentionConfig,
    cross: CrossAttentionConfig,
    channel: ChannelConfig,
    sizes: tuple[int, int, int, int, float],
    inputs: tuple[FullEmbeddingConfig, PositionConfig, NormConfig | None],
) -> EncoderDecoderConfig:
    """Return an encoder-decoder like BART; `sizes` are vocab, width, context, layers and dropout."""
    vocab, width, context, layers, dropout = sizes
    embedding, position, norm = inputs

    def tower(*parts: AttentionConfig | CrossAttentionConfig | ChannelConfig) -> TowerConfig:
        block = post_norm(*parts, norm=LayerNormConfig(), dropout=dropout)
        return TowerConfig(plan=with_entry(block, layers, dropout, norm), embedding=embedding, position=position)

    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=tower(attention, channel),
        decoder=tower(attention, cross, channel),
        ties=ONE_TABLE,
    )
