"""Loss: the last product and the cross-entropy in one, a chunk of tokens at a time, the gradient made on the way.

All logits of a batch never exist at once, and none is computed twice (the idea of Liger Kernel, Hsu et al. 2024): what
the loss wants of the logits is known as soon as they are, so each chunk multiplies it back and forgets them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from heddle.nn.base import upcast
from heddle.nn.kernels import fused_cross_entropy, uses_fused_cross_entropy
from heddle.nn.layers import apply_softcap

AT_ONCE = 1 << 29  # logits of a chunk where our kernel judges them in their place: a gigabyte in half precision
WRITTEN = 1 << 25  # and where it does not, for then several copies of them exist
EVEN = 64  # matrices of a GPU are fastest when their sides are multiples of it


@dataclass(frozen=True)
class LinearSoftmax:
    """How vectors become logits, and logits a loss."""

    matrix: Float[Tensor, "vocab width"]
    bias: Float[Tensor, " vocab"] | None = None
    softcap: float | None = None
    smoothing: float = 0.0


def fused_linear_cross_entropy(
    vectors: Float[Tensor, "tokens width"],
    targets: Int[Tensor, " tokens"],
    weights: Float[Tensor, " tokens"],
    how: LinearSoftmax,
) -> Float[Tensor, ""]:
    """Return the weighed sum of each target's negative log-likelihood."""
    ends = (how.softcap, how.smoothing)
    total: Tensor = _SummedNll.apply(vectors, targets, weights, how.matrix, how.bias, ends)
    return total


class _SummedNll(torch.autograd.Function):
    """The sum; its gradients are made in the forward, and only multiplied by a number in the backward."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, targets: Tensor, weights: Tensor, *rest: Any) -> Tensor:
        matrix, bias, (softcap, smoothing) = rest
        how = LinearSoftmax(matrix, bias, softcap, smoothing)
        spare = -len(matrix) % EVEN if vectors.is_cuda else 0
        table = F.pad(matrix.to(vectors.dtype), (0, 0, 0, spare))
        shift = None if bias is None else F.pad(bias.to(vectors.dtype), (0, spare))
        total = upcast(vectors).new_zeros(())
        to_matrix = upcast(matrix).new_zeros(table.shape)
        to_bias = None if bias is None else to_matrix.new_zeros(len(table))
        to_vectors = []
        for chunk in _chunks(len(vectors), len(table), AT_ONCE if uses_fused_cross_entropy(table) else WRITTEN):
            scores = F.linear(vectors[chunk], table, shift)
            loss, back = (judged if uses_fused_cross_entropy(scores) else _judge)(
                scores, targets[chunk], weights[chunk], how
            )
            total = total + loss
            to_vectors.append(back @ table)
            if ctx.needs_input_grad[3]:
                to_matrix = to_matrix + back.T @ vectors[chunk]
            if to_bias is not None:
                to_bias = to_bias + upcast(back).sum(0)
        to_bias = None if to_bias is None else to_bias[: len(matrix)]
        ctx.save_for_backward(torch.cat(to_vectors), to_matrix[: len(matrix)], to_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        to_vectors, to_matrix, to_bias = ctx.saved_tensors
        by_bias = None if to_bias is None else to_bias * gradient
        return (to_vectors * gradient).to(to_vectors.dtype), None, None, to_matrix * gradient, by_bias, None


def _chunks(tokens: int, vocab: int, most: int) -> Iterator[slice]:
    """Cut tokens into even chunks, none with many more logits than the most."""
    count = max(1, -(-tokens * vocab // most))
    size = max(1, -(-tokens // count))
    size = -(-size // EVEN) * EVEN
    for first in range(0, max(1, tokens), size):
        yield slice(first, first + size)


def judged(
    scores: Float[Tensor, "tokens padded"],
    targets: Int[Tensor, " tokens"],
    weights: Float[Tensor, " tokens"],
    how: LinearSoftmax,
) -> tuple[Tensor, Float[Tensor, "tokens padded"]]:
    """Do what `_judge` does by our own kernel, in the memory of the scores."""
    losses = fused_cross_entropy(scores, targets, weights, len(how.matrix), how.softcap, how.smoothing)
    return losses.sum(), scores


def _judge(
    scores: Float[Tensor, "tokens padded"],
    targets: Int[Tensor, " tokens"],
    weights: Float[Tensor, " tokens"],
    how: LinearSoftmax,
) -> tuple[Tensor, Float[Tensor, "tokens padded"]]:
    """Return the weighed loss of a chunk, and what it wants of each logit."""
    vocab, ids = len(how.matrix), torch.arange(scores.shape[1], device=scores.device)
    logits = apply_softcap(upcast(scores), how.softcap)
    real = logits if scores.shape[1] == vocab else logits.masked_fill(ids >= vocab, -torch.inf)
    norm = real.logsumexp(-1)
    right = logits.gather(-1, targets[:, None])[:, 0]
    loss = norm - right * (1 - how.smoothing)
    wanted = (real - norm[:, None]).exp() - (1 - how.smoothing) * (ids == targets[:, None]).to(logits.dtype)
    if how.smoothing:
        loss = loss - how.smoothing * logits[:, :vocab].mean(-1)
        wanted = wanted - (how.smoothing / vocab) * (ids < vocab).to(logits.dtype)
    if how.softcap is not None:
        wanted = wanted * (1 - (logits / how.softcap).square())
    return (loss * weights).sum(), (wanted * weights[:, None]).to(scores.dtype)
