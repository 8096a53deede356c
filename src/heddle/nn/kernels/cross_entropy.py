"""Fused cross-entropy in Triton: the loss of each row, and its gradient written over the logits.

The first pass keeps a maximum and a sum per thread (online softmax, Milakov & Gimelshein 2018), merged at the end. In
the second the row is still in the L2 cache, so memory is read once and written once. Needs CUDA; `dispatch.py` imports
it.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits that a program processes at a time
SIDE = 8  # adjacent logits that a thread reads at once
WARPS = 16
LOWEST = -1e30  # the first maximum; minus infinity minus itself would be NaN
LOG2_E = 1.4426950408889634  # GPUs compute powers of 2, not of e


@triton.jit
def _softcap(logit, softcap, CAPPED: tl.constexpr):
    """Return softcap * tanh(logit / softcap)."""
    if CAPPED:
        return softcap * (2 * tl.sigmoid(2 * logit / softcap) - 1)
    return logit


@triton.jit
def _cross_entropy(
    logits, targets, weights, losses, stride, vocab, padded, softcap, smoothing, z_loss,
    BLOCK: tl.constexpr, SIDE: tl.constexpr, LOG2_E: tl.constexpr, LOWEST: tl.constexpr,
    CAPPED: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    """Compute one row. It is read in `padded`, which is even: with `vocab` each load would be one number."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK // SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    begin = logits + row * stride.to(tl.int64)
    target, weight = tl.load(targets + row), tl.load(weights + row).to(tl.float32)
    target_logit = _softcap(tl.load(begin + target).to(tl.float32), softcap, CAPPED)
    maxima = tl.full([BLOCK // SIDE], LOWEST, tl.float32)
    sums = tl.zeros([BLOCK // SIDE], tl.float32)
    logit_sums = tl.zeros([BLOCK // SIDE], tl.float32)
    for start in range(0, padded, BLOCK):
        at = start + column
        logit = _softcap(tl.load(begin + at, mask=at < padded, other=0.0).to(tl.float32), softcap, CAPPED)
        if SMOOTHED:
            logit_sums += tl.sum(tl.where(at < vocab, logit, 0.0), 1)
        logit = tl.where(at < vocab, logit * LOG2_E, float("-inf"))
        new_maxima = tl.maximum(maxima, tl.max(logit, 1))
        sums = sums * tl.exp2(maxima - new_maxima) + tl.sum(tl.exp2(logit - new_maxima[:, None]), 1)
        maxima = new_maxima
    maximum = tl.max(maxima, 0)
    log_sum_exp = maximum + tl.log2(tl.sum(sums * tl.exp2(maxima - maximum), 0))
    mean = tl.sum(logit_sums, 0) / vocab
    log_normalizer = log_sum_exp / LOG2_E
    loss = log_normalizer - (1 - smoothing) * target_logit - smoothing * mean
    tl.store(losses + row, (loss + z_loss * log_normalizer * log_normalizer) * weight)
    scale = 1 + 2 * z_loss * log_normalizer  # of the probabilities in the gradient
    for start in range(0, padded, BLOCK):
        at = start + column
        logit = _softcap(tl.load(begin + at, mask=at < padded, other=0.0).to(tl.float32), softcap, CAPPED)
        gradient = scale * tl.exp2(logit * LOG2_E - log_sum_exp) - tl.where(at == target, 1 - smoothing, 0.0)
        if SMOOTHED:
            gradient -= smoothing / vocab
        if CAPPED:
            gradient *= 1 - (logit / softcap) * (logit / softcap)
        gradient = tl.where(at < vocab, gradient * weight, 0.0)
        tl.store(begin + at, gradient.to(logits.dtype.element_ty), mask=at < padded)


@torch.library.custom_op("heddle::cross_entropy", mutates_args=("logits",))
def fused_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor,
    vocab: int,
    softcap: float | None,
    smoothing: float,
    z_loss: float,
) -> Tensor:
    """Return each row's loss times its weight, and write the gradient over the logits.

    logits is [tokens, padded]; those past the vocabulary are ignored.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    targets, weights = targets.contiguous(), weights.contiguous()
    with torch.cuda.device_of(logits):
        _cross_entropy[(len(logits),)](
            logits, targets, weights, losses, logits.stride(0), vocab, logits.shape[1], softcap or 1.0, smoothing,
            z_loss,
            BLOCK=BLOCK, SIDE=SIDE, LOG2_E=LOG2_E, LOWEST=LOWEST,
            CAPPED=softcap is not None, SMOOTHED=smoothing > 0, num_warps=WARPS,
        )  # fmt: skip
    return losses


@fused_cross_entropy.register_fake
def _shape(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor,
    vocab: int,
    softcap: float | None,
    smoothing: float,
    z_loss: float,
) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.float32)
