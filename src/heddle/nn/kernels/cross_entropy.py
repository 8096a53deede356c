"""Judge: what a loss wants of each logit, written over the logits in two readings of a row, in Triton.

In the first reading every thread keeps a maximum and a sum of its own (online softmax, Milakov & Gimelshein 2018), and
they meet once, at the end; by the second the row is still in the cache, so that memory sees one reading and one
writing. Needs a CUDA device: `nn/kernels/dispatch.py` imports it where one is at hand.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits that a program looks at together
SIDE = 8  # logits that a thread reads at once, side by side
WARPS = 16
LOWEST = -1e30  # a maximum before anything was seen; minus infinity less itself is no number
BITS = 1.4426950408889634  # in a nat: the chip raises 2, not e, to a power


@triton.jit
def _bent(score, softcap, CAPPED: tl.constexpr):
    """Bend a score to stay within the cap."""
    if CAPPED:
        return softcap * (2 * tl.sigmoid(2 * score / softcap) - 1)
    return score


@triton.jit
def _judge(
    scores, targets, weights, losses, stride, vocab, padded, softcap, smoothing,
    BLOCK: tl.constexpr, SIDE: tl.constexpr, BITS: tl.constexpr, LOWEST: tl.constexpr,
    CAPPED: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    """Judge a row. It is read by `padded`, which is even: by `vocab` a read would be of one number at a time."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK // SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    begin = scores + row * stride.to(tl.int64)
    target, weight = tl.load(targets + row), tl.load(weights + row).to(tl.float32)
    right = _bent(tl.load(begin + target).to(tl.float32), softcap, CAPPED)
    highs = tl.full([BLOCK // SIDE], LOWEST, tl.float32)
    totals = tl.zeros([BLOCK // SIDE], tl.float32)
    means = tl.zeros([BLOCK // SIDE], tl.float32)
    for start in range(0, padded, BLOCK):
        at = start + column
        score = _bent(tl.load(begin + at, mask=at < padded, other=0.0).to(tl.float32), softcap, CAPPED)
        if SMOOTHED:
            means += tl.sum(tl.where(at < vocab, score, 0.0), 1)
        score = tl.where(at < vocab, score * BITS, float("-inf"))
        higher = tl.maximum(highs, tl.max(score, 1))
        totals = totals * tl.exp2(highs - higher) + tl.sum(tl.exp2(score - higher[:, None]), 1)
        highs = higher
    high = tl.max(highs, 0)
    norm = high + tl.log2(tl.sum(totals * tl.exp2(highs - high), 0))
    mean = tl.sum(means, 0) / vocab
    tl.store(losses + row, (norm / BITS - (1 - smoothing) * right - smoothing * mean) * weight)
    for start in range(0, padded, BLOCK):
        at = start + column
        score = _bent(tl.load(begin + at, mask=at < padded, other=0.0).to(tl.float32), softcap, CAPPED)
        wanted = tl.exp2(score * BITS - norm) - tl.where(at == target, 1 - smoothing, 0.0)
        if SMOOTHED:
            wanted -= smoothing / vocab
        if CAPPED:
            wanted *= 1 - (score / softcap) * (score / softcap)
        wanted = tl.where(at < vocab, wanted * weight, 0.0)
        tl.store(begin + at, wanted.to(scores.dtype.element_ty), mask=at < padded)


@torch.library.custom_op("heddle::judge", mutates_args=("scores",))
def judge(
    scores: Tensor, targets: Tensor, weights: Tensor, vocab: int, softcap: float | None, smoothing: float
) -> Tensor:
    """Return each row's loss, by its weight, and put what it wants of each score in the score's place.

    scores is [tokens, padded]; those past the vocabulary count for nothing.
    """
    losses = torch.empty(len(scores), dtype=torch.float32, device=scores.device)
    targets, weights = targets.contiguous(), weights.contiguous()
    with torch.cuda.device_of(scores):
        _judge[(len(scores),)](
            scores, targets, weights, losses, scores.stride(0), vocab, scores.shape[1], softcap or 1.0, smoothing,
            BLOCK=BLOCK, SIDE=SIDE, BITS=BITS, LOWEST=LOWEST,
            CAPPED=softcap is not None, SMOOTHED=smoothing > 0, num_warps=WARPS,
        )  # fmt: skip
    return losses


@judge.register_fake
def _shape(
    scores: Tensor, targets: Tensor, weights: Tensor, vocab: int, softcap: float | None, smoothing: float
) -> Tensor:
    return scores.new_empty(len(scores), dtype=torch.float32)
