"""Parts: one family per file, each config just above the module that it builds."""

from heddle.nn import (
    adapters,
    attention,
    base,
    channels,
    convolution,
    ends,
    kernels,
    layers,
    positions,
    quantization,
    recurrent,
    stack,
    state,
)
