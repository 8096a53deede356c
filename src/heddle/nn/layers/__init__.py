"""Small layers: norms, dropout, activations and attention masks."""

from heddle.nn.layers.activations import ACTIVATIONS, activation, bent
from heddle.nn.layers.dropout import DropoutConfig, EachDropoutConfig, RowDropoutConfig
from heddle.nn.layers.masks import (
    MaskConfig,
    WholeConfig,
    WindowConfig,
    base_mask,
    distance_of,
    park,
    past_mask,
    places_of,
    steps_of,
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

__all__ = [
    "ACTIVATIONS",
    "DropoutConfig",
    "EachDropoutConfig",
    "LayerNormConfig",
    "MaskConfig",
    "NoNormConfig",
    "NormConfig",
    "OffsetRMSNormConfig",
    "PartialRMSNormConfig",
    "RMSNormConfig",
    "RowDropoutConfig",
    "ShiftConfig",
    "ShiftScaleConfig",
    "WholeConfig",
    "WindowConfig",
    "activation",
    "base_mask",
    "bent",
    "distance_of",
    "park",
    "past_mask",
    "places_of",
    "steps_of",
]
