"""Kernel dispatch: where Triton kernels replace torch's on CUDA: GEMV, quantized GEMM, flash decoding, loss, float8.

They compute the same as what they replace. Triton is installed with CUDA builds of torch; without it torch's kernels
are used.
"""

import importlib.util

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
MAX_GEMV_ROWS = 2  # at most this many vectors; for more, tensor cores are faster
MAX_GEMM_ROWS = 64  # at most this many vectors; for more, the matrix is dequantized first
MAX_INT4_ROW_BYTES = 4096  # of a row in int4 that a program can hold
MIN_BLOCK_BYTES = 32  # of a row that a program reads at a time, at least
HALF_DTYPES = (torch.bfloat16, torch.float16)
FLOAT_DTYPES = (torch.float32, *HALF_DTYPES)
MAX_HEAD_BYTES = 512  # of a head's vector that a program can hold


def supports_pdl(device: torch.device) -> bool:
    """Tell whether the device has programmatic dependent launch (PDL): kernels start before the previous one ends."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def uses_gemv(x: Tensor, weight: Tensor) -> bool:
    """Tell whether a product is by one vector or two, where reading the matrix is all the work.

    A matrix that must be cast first is left to torch: the kernel reads it before the previous kernel has ended. Int8
    codes are converted as they are read.
    """
    if not (HAS_TRITON and x.is_cuda) or torch.is_grad_enabled() or weight.dtype not in (x.dtype, torch.int8):
        return False
    return x.numel() <= MAX_GEMV_ROWS * x.shape[-1] and x.dtype in FLOAT_DTYPES and weight.stride(-1) == 1


def gemv_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x · weight for few vectors (GEMV)."""
    from heddle.nn.kernels import gemv

    return gemv.gemv_linear(x, weight)  # type: ignore[no-any-return]


def uses_quantized_gemm(x: Tensor, codes: Tensor, scales: Tensor) -> bool:
    """Tell whether a product with int8 or int4 codes is by few enough vectors and of a shape that the kernels take.

    For more vectors it is faster to dequantize the matrix first. Int4 has a scale for each group of a row, and no group
    may span both halves of the row.
    """
    if not (HAS_TRITON and x.is_cuda) or torch.is_grad_enabled() or len(x) > MAX_GEMM_ROWS:
        return False
    if scales.dim() == 2 and scales.shape[1] % 2:
        return False
    if _fits_int4_gemv(x, codes, scales):
        return x.dtype in FLOAT_DTYPES
    return x.dtype in HALF_DTYPES and codes.shape[1] % MIN_BLOCK_BYTES == 0


def quantized_linear(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return x · matrix for int8 or int4 codes, x being [rows, inputs]."""
    from heddle.nn.kernels import quantized_gemm

    if _fits_int4_gemv(x, codes, scales):
        return quantized_gemm.int4_gemv(x, codes, scales)  # type: ignore[no-any-return]
    parts: Tensor = quantized_gemm.split_k_gemm(x, codes, scales)
    return parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)


def _fits_int4_gemv(x: Tensor, codes: Tensor, scales: Tensor) -> bool:
    """Tell whether the int4 GEMV, whose programs hold whole rows, can be used."""
    return scales.dim() == 2 and len(x) <= MAX_GEMV_ROWS and codes.shape[1] <= MAX_INT4_ROW_BYTES


def supports_flash_decoding(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether the flash-decoding kernel can read these tensors: one query per row, no gradient."""
    if not HAS_TRITON or torch.is_grad_enabled():
        return False
    width = query.shape[-1]
    if query.shape[2] != 1 or width * query.element_size() > MAX_HEAD_BYTES or width != value.shape[-1]:
        return False
    if query.dtype not in FLOAT_DTYPES or not query.dtype == key.dtype == value.dtype:
        return False
    return query.stride(-1) == key.stride(-1) == value.stride(-1) == 1


def flash_decode(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Attend with one query per row to its first `lengths + 1` keys; the unused capacity is not read."""
    from heddle.nn.kernels import flash_decoding

    return flash_decoding.flash_decode(query, key, value, lengths, scale)  # type: ignore[no-any-return]


def uses_fused_cross_entropy(logits: Tensor) -> bool:
    """Tell whether the kernel can read these logits."""
    return HAS_TRITON and logits.is_cuda and logits.dtype in FLOAT_DTYPES and logits.stride(-1) == 1


def fused_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor, vocab: int, options: tuple[float | None, float, float]
) -> Tensor:
    """Return each row's loss times its weight, and write the gradient over the logits.

    The options are softcap, label smoothing and z-loss.
    """
    from heddle.nn.kernels import cross_entropy

    losses: Tensor = cross_entropy.fused_cross_entropy(logits, targets, weights, vocab, *options)
    return losses


def uses_float8_cast(x: Tensor) -> bool:
    """Tell whether the kernel can cast these numbers to float8.

    Not from float32: Triton 3.6 transposes tiles of bytes cast from float32 wrongly.
    """
    return HAS_TRITON and x.is_cuda and x.dtype in HALF_DTYPES


def cast_to_float8(x: Tensor, dtype: torch.dtype, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix in float8, its transpose, and the scale that restores the numbers."""
    from heddle.nn.kernels import float8_cast

    return float8_cast.cast_to_float8(x, dtype, least)  # type: ignore[no-any-return]
