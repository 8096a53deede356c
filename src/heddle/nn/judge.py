"""Judge: what a loss wants of each logit, written over the logits in two readings of a row, in Triton.

The first reading keeps a running maximum and sum (online softmax, Milakov & Gimelshein 2018); by the second the row is
still in the cache, so that memory sees one reading and one writing. Needs a CUDA device: `nn/kernels.py` imports it
where one is at hand.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # logits that a program looks at together
WARPS = 16
STAGES = 3  # loads that are under way together
AT_ONCE = 264  # rows: more of them would push each other out of the cache between the two readings


@triton.jit
def _bent(score, softcap, CAPPED: tl.constexpr):
    """Bend a score to stay within the cap."""
    if CAPPED:
        return softcap * (2 * tl.sigmoid(2 * score / softcap) - 1)
    return score


@triton.jit
def _judge(
    scores, targets, weights, losses, rows, stride, vocab, padded, softcap, smoothing,
    BLOCK: tl.constexpr, CAPPED: tl.constexpr, SMOOTHED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Judge row after row."""
    column = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        begin = scores + row * stride.to(tl.int64)
        target, weight = tl.load(targets + row), tl.load(weights + row).to(tl.float32)
        right = _bent(tl.load(begin + target).to(tl.float32), softcap, CAPPED)
        high = tl.full([], float("-inf"), tl.float32)
        total = tl.zeros([], tl.float32)
        mean = tl.zeros([], tl.float32)
        for start in tl.range(0, vocab, BLOCK, num_stages=STAGES):
            inside = start + column < vocab
            score = tl.load(begin + start + column, mask=inside, other=0.0).to(tl.float32)
            score = tl.where(inside, _bent(score, softcap, CAPPED), float("-inf"))
            higher = tl.maximum(high, tl.max(score, 0))
            total = total * tl.exp(high - higher) + tl.sum(tl.exp(score - higher), 0)
            high = higher
            if SMOOTHED:
                mean += tl.sum(tl.where(inside, score, 0.0), 0)
        norm = high + tl.log(total)
        tl.store(losses + row, (norm - (1 - smoothing) * right - smoothing * mean / vocab) * weight)
        for start in tl.range(0, padded, BLOCK, num_stages=STAGES):
            at = start + column
            inside = at < vocab
            score = _bent(tl.load(begin + at, mask=inside, other=0.0).to(tl.float32), softcap, CAPPED)
            wanted = tl.exp(score - norm) - smoothing / vocab - tl.where(at == target, 1 - smoothing, 0.0)
            if CAPPED:
                wanted = wanted * (1 - (score / softcap) * (score / softcap))
            wanted = tl.where(inside, wanted * weight, 0.0)
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
        _judge[(min(AT_ONCE, len(scores)),)](
            scores, targets, weights, losses, len(scores), scores.stride(0), vocab, scores.shape[1],
            softcap or 1.0, smoothing,
            BLOCK=BLOCK, CAPPED=softcap is not None, SMOOTHED=smoothing > 0, STAGES=STAGES, num_warps=WARPS,
        )  # fmt: skip
    return losses


@judge.register_fake
def _shape(
    scores: Tensor, targets: Tensor, weights: Tensor, vocab: int, softcap: float | None, smoothing: float
) -> Tensor:
    return scores.new_empty(len(scores), dtype=torch.float32)
