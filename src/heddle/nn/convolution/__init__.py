"""Convolutions over time: lightweight and dynamic convolution, and those of the Evolved Transformer."""

from heddle.nn.convolution.convolution import (
    Convolution,
    DynamicConvolutionConfig,
    LightweightConvolutionConfig,
)
from heddle.nn.convolution.evolved_transformer import (
    EvolvedDecoderConvolutionConfig,
    EvolvedEncoderConvolutionConfig,
    GatedLinearUnitConfig,
)
