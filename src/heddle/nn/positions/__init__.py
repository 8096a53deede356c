"""Positional encodings: index, learned, sinusoidal, relative, T5 bias, ALiBi and rotary embeddings (RoPE)."""

from heddle.nn.positions.index import BinaryIndexPositionConfig, IndexPositionConfig, NormalisedIndexPositionConfig
from heddle.nn.positions.position import (
    LearnedPositionConfig,
    NoPositionConfig,
    Position,
    PositionConfig,
    SinusoidalPositionConfig,
    angles,
    frequencies,
)
from heddle.nn.positions.relative import (
    AlibiPositionConfig,
    AttentionBias,
    RelativePosition,
    RelativePositionConfig,
    T5PositionConfig,
)
from heddle.nn.positions.rotary import (
    DualRotaryPositionConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    NoScalingConfig,
    NTKScalingConfig,
    RotaryPositionConfig,
    RotaryScalingConfig,
    YarnScalingConfig,
    apply_rotary,
)
