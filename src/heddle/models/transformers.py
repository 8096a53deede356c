"""Transformers by name: decoder-only and encoder-decoder, each with the paper or release that it comes from."""

from heddle.core import replace
from heddle.models.blocks import post_norm, pre_norm
from heddle.models.encoder_decoder import EncoderDecoderConfig
from heddle.models.language_model import TIED, LanguageModelConfig
from heddle.models.model import TieConfig
from heddle.models.presets import gpt2, llama
from heddle.models.tower import TowerConfig
from heddle.nn import (
    AttentionConfig,
    ChainConfig,
    CrossAttentionConfig,
    EachDropoutConfig,
    EntryConfig,
    FeedForwardConfig,
    FullEmbeddingConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    PlanConfig,
    ProjectionsConfig,
    RepeatConfig,
    RMSNormConfig,
    SinusoidalPositionConfig,
    WindowConfig,
    XavierInitConfig,
)

ONE_TABLE = (
    TieConfig(share="decoder.embedding.weight", of="encoder.embedding.weight"),
    TieConfig(share="head.weight", of="encoder.embedding.weight"),
)
BIASED = ProjectionsConfig(bias=True, output_bias=True)


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
    embedding = FullEmbeddingConfig(scale=width**0.5)
    entry = EntryConfig(dropout=EachDropoutConfig(rate=dropout))
    attention, cross = AttentionConfig(heads=heads), CrossAttentionConfig(heads=heads)
    channel = FeedForwardConfig(hidden=hidden, bias=True)

    def tower(*parts: AttentionConfig | CrossAttentionConfig | FeedForwardConfig) -> TowerConfig:
        body = post_norm(*parts, norm=LayerNormConfig(), dropout=dropout)
        plan = ChainConfig(bodies=(entry, RepeatConfig(body=body, times=layers)))
        return TowerConfig(plan=plan, embedding=embedding, position=SinusoidalPositionConfig())

    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=tower(attention, channel),
        decoder=tower(attention, cross, channel),
        init=XavierInitConfig(),
        ties=ONE_TABLE,
    )
