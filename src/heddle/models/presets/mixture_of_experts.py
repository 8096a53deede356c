"""Mixture-of-experts models: Switch Transformer (Fedus et al. 2021) and Mixtral (Jiang et al. 2024)."""

from heddle.core import swap
from heddle.models.networks import ONE_TABLE, EncoderDecoderConfig, LanguageModelConfig, TowerConfig, pre_norm
from heddle.models.presets.decoders import llama
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig
from heddle.nn.base import NarangInitConfig, PartConfig
from heddle.nn.channels import (
    ExpertsConfig,
    FactorConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
    LoadBalancingLossConfig,
    TokenChoiceConfig,
)
from heddle.nn.ends import SoftmaxHeadConfig
from heddle.nn.layers import RMSNormConfig
from heddle.nn.positions import T5PositionConfig
from heddle.nn.stack import ChainConfig


def mixtral(
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int | None = None,
    hidden: int | None = None,
    experts: int = 8,
    vocab: int = 32_000,
    context: int = 32_768,
) -> LanguageModelConfig:
    """Mixtral (Jiang et al. 2024): Llama's layers with eight experts in each, of which a token uses two; dropless."""
    dense = llama(layers, width, heads, kv_heads, hidden, vocab, context, base=1e6)
    balance, router = LoadBalancingLossConfig(weight=0.02), TokenChoiceConfig(top_k=min(2, experts))
    return swap(
        GatedFeedForwardConfig,
        lambda expert: ExpertsConfig(experts=experts, expert=expert, router=router, balance=balance),
    )(dense)


def switch(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    experts: int = 8,
    vocab: int = 32_128,
    context: int = 512,
) -> EncoderDecoderConfig:
    """Switch Transformer (Fedus et al. 2021): T5 with experts in every second layer, of which a token uses one.

    Scores are divided by sqrt(head_width); the released weights have that factor in their query matrices.
    """
    attention, cross = AttentionConfig(heads=heads), CrossAttentionConfig(heads=heads)
    dense, norm = FeedForwardConfig(hidden=hidden), RMSNormConfig()
    sparse = ExpertsConfig(
        experts=experts,
        expert=dense,
        router=TokenChoiceConfig(top_k=1, normalized=False, jitter=0.01),
        capacity=FactorConfig(factor=1.25),
        balance=LoadBalancingLossConfig(weight=0.01),
        z_loss=0.001,
    )

    def tower(*mixers: PartConfig) -> TowerConfig:
        channels = (sparse if layer % 2 else dense for layer in range(layers))
        bodies = tuple(pre_norm(*mixers, channel, norm=norm) for channel in channels)
        return TowerConfig(plan=ChainConfig(bodies=bodies), position=T5PositionConfig(), norm=norm)

    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=tower(attention),
        decoder=tower(attention, cross),
        head=SoftmaxHeadConfig(power=-0.5),
        init=NarangInitConfig(gain=0.1),
        ties=ONE_TABLE,
    )
