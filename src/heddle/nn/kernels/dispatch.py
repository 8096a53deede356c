"""Kernels: where our own, in Triton, take the place of torch's on a CUDA device: a few tokens at rest, packed matrices,
the loss, and floats of eight bits.

They compute the same as what they stand for. Triton comes with torch where it knows CUDA; without it all goes the
usual way.
"""

import importlib.util

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
FEW = 2  # vectors that a matrix is multiplied by at once, at most; for more, the tensor cores are better
MANY = 64  # vectors that whole numbers are widened for as they are read, at most; for more they are written out
LONGEST = 4096  # bytes of a row in four bits that a program can hold
STRETCH = 32  # bytes of a row that a program reads at a time, at least
HALVES = (torch.bfloat16, torch.float16)
KINDS = (torch.float32, *HALVES)
WIDEST = 512  # bytes of a head's vector that a program can hold


def begins_early(device: torch.device) -> bool:
    """Tell whether kernels may begin before the one in front of them has ended (programmatic dependent launch)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def multiplies_few(x: Tensor, weight: Tensor) -> bool:
    """Tell whether a product is one of few vectors, for which reading the matrix is all the work.

    A matrix that must first be cast is left to torch: ours is read before the kernel in front has ended. Whole numbers
    are widened as they are read.
    """
    if not (TRITON and x.is_cuda) or torch.is_grad_enabled() or weight.dtype not in (x.dtype, torch.int8):
        return False
    return x.numel() <= FEW * x.shape[-1] and x.dtype in KINDS and weight.stride(-1) == 1


def times_few(x: Tensor, weight: Tensor) -> Tensor:
    """Return x · weight for a few vectors."""
    from heddle.nn.kernels import gemv as few

    return few.times_few(x, weight)  # type: ignore[no-any-return]


def multiplies_codes(x: Tensor, codes: Tensor, scales: Tensor) -> bool:
    """Tell whether a product with whole numbers, in eight bits or in four, is one of few enough vectors.

    For more of them it is better to write the matrix out once. Four bits have a scale for each group of a row, and no
    group may lie in both halves of it.
    """
    if not (TRITON and x.is_cuda) or torch.is_grad_enabled() or len(x) > MANY:
        return False
    if scales.dim() == 2 and scales.shape[1] % 2:
        return False
    if _holds_rows(x, codes, scales):
        return x.dtype in KINDS
    return x.dtype in HALVES and codes.shape[1] % STRETCH == 0


def times_codes(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return the products of such a matrix with vectors, [rows, inputs]."""
    from heddle.nn.kernels import quantized_gemm as coded

    if _holds_rows(x, codes, scales):
        return coded.times_few(x, codes, scales)  # type: ignore[no-any-return]
    parts: Tensor = coded.times_many(x, codes, scales)
    return parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)


def _holds_rows(x: Tensor, codes: Tensor, scales: Tensor) -> bool:
    """Tell whether a program holds whole rows of four bits, for few vectors."""
    return scales.dim() == 2 and len(x) <= FEW and codes.shape[1] <= LONGEST


def mixes_filled(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether one query a row meets keys and values that a program can read as they lie."""
    if not (TRITON and query.is_cuda) or torch.is_grad_enabled():
        return False
    width = query.shape[-1]
    if query.shape[2] != 1 or width * query.element_size() > WIDEST or width != value.shape[-1]:
        return False
    if query.dtype not in KINDS or not query.dtype == key.dtype == value.dtype:
        return False
    return query.stride(-1) == key.stride(-1) == value.stride(-1) == 1


def mix_filled(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Mix values for one query a row by its first `lengths + 1` keys; what else there is room for is not read."""
    from heddle.nn.kernels import flash_decoding as split

    return split.mix_filled(query, key, value, lengths, scale)  # type: ignore[no-any-return]


def judges(scores: Tensor) -> bool:
    """Tell whether a program can read logits as they lie."""
    return TRITON and scores.is_cuda and scores.dtype in KINDS and scores.stride(-1) == 1


def judge(
    scores: Tensor, targets: Tensor, weights: Tensor, vocab: int, softcap: float | None, smoothing: float
) -> Tensor:
    """Return each row's loss, by its weight, and put what it wants of each score in the score's place."""
    from heddle.nn.kernels import cross_entropy as kernel

    return kernel.judge(scores, targets, weights, vocab, softcap, smoothing)  # type: ignore[no-any-return]


def narrows(x: Tensor) -> bool:
    """Tell whether a program can bring numbers into eight bits.

    Not those of float32: Triton 3.6 turns a tile of bytes that come from such numbers wrongly.
    """
    return TRITON and x.is_cuda and x.dtype in HALVES


def narrow(x: Tensor, dtype: torch.dtype, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix in eight bits, the same with rows and columns changed, and what makes them the old numbers."""
    from heddle.nn.kernels import float8_cast as kernel

    return kernel.narrow(x, dtype, least)  # type: ignore[no-any-return]
