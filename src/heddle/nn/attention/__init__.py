"""Attention: scaled dot-product, grouped-query, latent and cross-attention, sliding windows, Synthesizers."""

from heddle.nn.attention.attention import Attention, AttentionConfig, set_horizon
from heddle.nn.attention.branched import (
    BranchedAttentionConfig,
    BranchedCrossAttentionConfig,
    ClippedSharesConfig,
    SharesConfig,
    SoftmaxSharesConfig,
)
from heddle.nn.attention.cross import CrossAttention, CrossAttentionConfig
from heddle.nn.attention.latent import LatentAttentionConfig, LatentWidthsConfig
from heddle.nn.attention.projections import Looking, ProjectionsConfig, head_width_of
from heddle.nn.attention.scores import (
    AdditiveScoreConfig,
    DotScoreConfig,
    GeneralScoreConfig,
    Meeting,
    Score,
    ScoreConfig,
    SinkScoreConfig,
)
from heddle.nn.attention.synthesizer import AloneConfig, AlphaConfig, BlendConfig, PlusConfig, SynthesizerConfig
from heddle.nn.attention.synthesizer_patterns import (
    ConstantPatternConfig,
    DensePatternConfig,
    FactorizedPatternConfig,
    PatternConfig,
    RandomPatternConfig,
)
from heddle.nn.attention.value_residual import FirstValuesConfig, ValuesConfig

__all__ = [
    "AdditiveScoreConfig",
    "AloneConfig",
    "AlphaConfig",
    "Attention",
    "AttentionConfig",
    "BlendConfig",
    "BranchedAttentionConfig",
    "BranchedCrossAttentionConfig",
    "ClippedSharesConfig",
    "ConstantPatternConfig",
    "CrossAttention",
    "CrossAttentionConfig",
    "DensePatternConfig",
    "DotScoreConfig",
    "FactorizedPatternConfig",
    "FirstValuesConfig",
    "GeneralScoreConfig",
    "LatentAttentionConfig",
    "LatentWidthsConfig",
    "Looking",
    "Meeting",
    "PatternConfig",
    "PlusConfig",
    "ProjectionsConfig",
    "RandomPatternConfig",
    "Score",
    "ScoreConfig",
    "SharesConfig",
    "SinkScoreConfig",
    "SoftmaxSharesConfig",
    "SynthesizerConfig",
    "ValuesConfig",
    "head_width_of",
    "set_horizon",
]
