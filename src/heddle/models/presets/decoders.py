"""Decoder-only language models: GPT-2, Llama and our own defaults, as short functions over shared parts."""

from heddle.models.networks import TIED, LanguageModelConfig, TieConfig, pre_norm
from heddle.nn.attention import AttentionConfig, ProjectionsConfig, ValueResidualConfig
from heddle.nn.base import FanInInitConfig, NormalInitConfig
from heddle.nn.channels import FeedForwardConfig, GatedFeedForwardConfig
from heddle.nn.ends import FullEmbeddingConfig, SoftmaxHeadConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig, RMSNormConfig
from heddle.nn.positions import LearnedPositionConfig, RotaryPositionConfig
from heddle.nn.stack import ChainConfig, EntryConfig, RepeatConfig, RootedConfig


def first(
    layers: int = 4, width: int = 128, heads: int = 2, vocab: int = 4096, context: int = 256, dropout: float = 0.0
) -> LanguageModelConfig:
    """Our small default: pre-norm RMS, rotary positions, normed queries and keys, squared ReLU, tied weights."""
    attention = AttentionConfig(heads=heads, projections=ProjectionsConfig(norm=RMSNormConfig()), dropout=dropout)
    channel = FeedForwardConfig(activation="relu_squared")
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=RepeatConfig(body=pre_norm(attention, channel, norm=RMSNormConfig(), dropout=dropout), times=layers),
        embedding=FullEmbeddingConfig(dropout=ElementDropoutConfig(rate=dropout)),
        position=RotaryPositionConfig(),
        norm=RMSNormConfig(),
        init=FanInInitConfig(embedding=2.56 / width),  # blocks begin as the identity: a token logit is width times this
        ties=TIED,
    )


def speedrun(
    layers: int = 8, width: int = 512, heads: int = 4, vocab: int = 16_384, context: int = 1024
) -> LanguageModelConfig:
    """Speedrun model: `first` with embedding residuals, value residuals and an untied head (modded-nanogpt)."""
    projections = ProjectionsConfig(norm=RMSNormConfig())
    attention = AttentionConfig(heads=heads, projections=projections, values=ValueResidualConfig())
    block = pre_norm(attention, FeedForwardConfig(activation="relu_squared"), norm=RMSNormConfig())
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=ChainConfig(bodies=(EntryConfig(norm=RMSNormConfig()), RootedConfig(body=block, times=layers))),
        position=RotaryPositionConfig(),
        norm=RMSNormConfig(),
        head=SoftmaxHeadConfig(softcap=15.0),
        init=FanInInitConfig(),
    )


def gpt2(
    layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 50257, context: int = 1024, dropout: float = 0.0
) -> LanguageModelConfig:
    """GPT-2 (Radford et al. 2019): pre-norm, learned positions, GELU, biases everywhere, tied weights."""
    biased = ProjectionsConfig(bias=True, output_bias=True)
    attention = AttentionConfig(heads=heads, projections=biased, dropout=dropout)
    channel = FeedForwardConfig(activation="gelu_tanh", bias=True)
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=RepeatConfig(body=pre_norm(attention, channel, norm=LayerNormConfig(), dropout=dropout), times=layers),
        embedding=FullEmbeddingConfig(dropout=ElementDropoutConfig(rate=dropout)),
        position=LearnedPositionConfig(),
        norm=LayerNormConfig(),
        ties=TIED,
    )


def llama(
    layers: int = 16,
    width: int = 2048,
    heads: int = 32,
    kv_heads: int | None = None,
    hidden: int | None = None,
    vocab: int = 32000,
    context: int = 2048,
    base: float = 10_000.0,
    eps: float = 1e-5,
    tied: bool = False,
) -> LanguageModelConfig:
    """Llama (Touvron et al. 2023; Dubey et al. 2024): pre-norm RMS, rotary positions, gated swish, no biases."""
    attention = AttentionConfig(heads=heads, kv_heads=kv_heads)
    channel = GatedFeedForwardConfig(hidden=hidden)
    ties: tuple[TieConfig, ...] = TIED if tied else ()
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=RepeatConfig(body=pre_norm(attention, channel, norm=RMSNormConfig(eps=eps)), times=layers),
        position=RotaryPositionConfig(base=base),
        norm=RMSNormConfig(eps=eps),
        init=NormalInitConfig(shrink_into_stream=False),
        ties=ties,
    )
