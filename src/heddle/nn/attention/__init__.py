"""Attention: scaled dot-product, grouped-query, latent and cross-attention, sliding windows, Synthesizers."""

from heddle.nn.attention.attention import Attention, AttentionConfig, set_warmup_window
from heddle.nn.attention.backends import AttentionInputs
from heddle.nn.attention.branched import (
    BranchedAttentionConfig,
    BranchedCrossAttentionConfig,
    BranchWeightsConfig,
    ClippedBranchWeightsConfig,
    SoftmaxBranchWeightsConfig,
)
from heddle.nn.attention.cross import CrossAttention, CrossAttentionConfig
from heddle.nn.attention.explain import Phase, Situation, explain_backend
from heddle.nn.attention.latent import LatentAttentionConfig, LatentWidthsConfig
from heddle.nn.attention.projections import AttentionPart, ProjectionsConfig, head_width_for
from heddle.nn.attention.scores import (
    AdditiveScoreConfig,
    DotScoreConfig,
    GeneralScoreConfig,
    Score,
    ScoreConfig,
    SinkScoreConfig,
)
from heddle.nn.attention.synthesizer import (
    AloneConfig,
    AlphaConfig,
    BlendConfig,
    PlusConfig,
    Synthesizer,
    SynthesizerConfig,
)
from heddle.nn.attention.synthesizer_patterns import (
    ConstantPatternConfig,
    DensePatternConfig,
    FactorizedPatternConfig,
    PatternConfig,
    RandomPatternConfig,
)
from heddle.nn.attention.value_residual import ValueResidualConfig, ValuesConfig
