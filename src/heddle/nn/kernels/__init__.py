"""Triton kernels, and `dispatch.py`, which tells where each replaces torch's."""

from heddle.nn.kernels.dispatch import (
    cast_to_float8,
    flash_decode,
    fused_cross_entropy,
    gemv_linear,
    quantized_linear,
    supports_flash_decoding,
    supports_pdl,
    uses_float8_cast,
    uses_fused_cross_entropy,
    uses_gemv,
    uses_quantized_gemm,
)
