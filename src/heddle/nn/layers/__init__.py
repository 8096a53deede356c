"""Small layers: norms, dropout, activations and attention masks."""

from heddle.nn.layers.activations import ACTIVATIONS, ActivationName, activation, apply_softcap
from heddle.nn.layers.dropout import DropoutConfig, ElementDropoutConfig, VariationalDropoutConfig
from heddle.nn.layers.masks import (
    FullMaskConfig,
    MaskConfig,
    SlidingWindowConfig,
    allowed_keys,
    base_mask,
    causal_mask,
    clamp_padding,
    document_positions,
    key_distances,
    query_steps,
)
from heddle.nn.layers.norms import (
    LayerNormConfig,
    NoNormConfig,
    NormConfig,
    OffsetRMSNormConfig,
    PartialRMSNormConfig,
    RMSNormConfig,
    ShiftConfig,
    ShiftScaleConfig,
)
