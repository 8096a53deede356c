"""Fused linear cross-entropy: the last product and the loss, with smoothing and z-loss, a chunk of tokens at a time.

The logits of a batch never exist at once, and none is computed twice (the idea of Liger Kernel, Hsu et al. 2024): the
gradient of the logits is known as soon as they are, so each chunk computes its gradients and drops its logits.
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

KERNEL_CHUNK = 1 << 29  # logits of a chunk if our kernel works in place: a gigabyte in half precision
TORCH_CHUNK = 1 << 25  # and if torch computes them, which makes several copies
PAD_MULTIPLE = 64  # GPU products are fastest when their sizes are multiples of it


@dataclass(frozen=True)
class LinearSoftmax:
    """The parameters of a softmax head and its loss: softmax(softcap(matrix · x + bias)), label smoothing, z-loss."""

    matrix: Float[Tensor, "vocab width"]
    bias: Float[Tensor, " vocab"] | None = None
    softcap: float | None = None
    smoothing: float = 0.0
    z_loss: float = 0.0


def fused_linear_cross_entropy(
    vectors: Float[Tensor, "tokens width"],
    targets: Int[Tensor, " tokens"],
    weights: Float[Tensor, " tokens"],
    softmax: LinearSoftmax,
) -> Float[Tensor, ""]:
    """Return the weighted sum of the targets' negative log-likelihoods."""
    options = (softmax.softcap, softmax.smoothing, softmax.z_loss)
    total: Tensor = _FusedLinearCrossEntropy.apply(vectors, targets, weights, softmax.matrix, softmax.bias, options)
    return total


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """The loss; its gradients are computed in the forward pass, and only scaled in the backward pass."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, targets: Tensor, weights: Tensor, *rest: Any) -> Tensor:
        matrix, bias, options = rest
        softmax = LinearSoftmax(matrix, bias, *options)
        padding = -len(matrix) % PAD_MULTIPLE if vectors.is_cuda else 0
        padded_matrix = F.pad(matrix.to(vectors.dtype), (0, 0, 0, padding))
        padded_bias = None if bias is None else F.pad(bias.to(vectors.dtype), (0, padding))
        total = upcast(vectors).new_zeros(())
        grad_matrix = upcast(matrix).new_zeros(padded_matrix.shape)
        grad_bias = None if bias is None else grad_matrix.new_zeros(len(padded_matrix))
        grad_vectors = []
        for chunk in _chunks(
            len(vectors), len(padded_matrix), KERNEL_CHUNK if uses_fused_cross_entropy(padded_matrix) else TORCH_CHUNK
        ):
            scores = F.linear(vectors[chunk], padded_matrix, padded_bias)
            loss, grad_scores = (kernel_cross_entropy if uses_fused_cross_entropy(scores) else torch_cross_entropy)(
                scores, targets[chunk], weights[chunk], softmax
            )
            total = total + loss
            grad_vectors.append(grad_scores @ padded_matrix)
            if ctx.needs_input_grad[3]:
                grad_matrix = grad_matrix + grad_scores.T @ vectors[chunk]
            if grad_bias is not None:
                grad_bias = grad_bias + upcast(grad_scores).sum(0)
        grad_bias = None if grad_bias is None else grad_bias[: len(matrix)]
        ctx.save_for_backward(torch.cat(grad_vectors), grad_matrix[: len(matrix)], grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        grad_vectors, grad_matrix, grad_bias = ctx.saved_tensors
        scaled_bias = None if grad_bias is None else grad_bias * gradient
        return (grad_vectors * gradient).to(grad_vectors.dtype), None, None, grad_matrix * gradient, scaled_bias, None


def _chunks(tokens: int, vocab: int, most: int) -> Iterator[slice]:
    """Yield equal chunks of tokens, each with about `most` logits or fewer."""
    count = max(1, -(-tokens * vocab // most))
    size = max(1, -(-tokens // count))
    size = -(-size // PAD_MULTIPLE) * PAD_MULTIPLE
    for first in range(0, max(1, tokens), size):
        yield slice(first, first + size)


def kernel_cross_entropy(
    scores: Float[Tensor, "tokens padded"],
    targets: Int[Tensor, " tokens"],
    weights: Float[Tensor, " tokens"],
    softmax: LinearSoftmax,
) -> tuple[Tensor, Float[Tensor, "tokens padded"]]:
    """Return the same by our Triton kernel, which writes the gradient over the logits."""
    options = (softmax.softcap, softmax.smoothing, softmax.z_loss)
    losses = fused_cross_entropy(scores, targets, weights, len(softmax.matrix), options)
    return losses.sum(), scores


def torch_cross_entropy(
    scores: Float[Tensor, "tokens padded"],
    targets: Int[Tensor, " tokens"],
    weights: Float[Tensor, " tokens"],
    softmax: LinearSoftmax,
) -> tuple[Tensor, Float[Tensor, "tokens padded"]]:
    """Return the weighted loss of a chunk, and the gradient of its logits."""
    vocab, ids = len(softmax.matrix), torch.arange(scores.shape[1], device=scores.device)
    logits = apply_softcap(upcast(scores), softmax.softcap)
    real = logits if scores.shape[1] == vocab else logits.masked_fill(ids >= vocab, -torch.inf)
    norm = real.logsumexp(-1)
    target_logits = logits.gather(-1, targets[:, None])[:, 0]
    loss = norm - target_logits * (1 - softmax.smoothing)
    probabilities = (real - norm[:, None]).exp()
    if softmax.z_loss:
        loss = loss + softmax.z_loss * norm.square()
        probabilities = probabilities * (1 + 2 * softmax.z_loss * norm[:, None])
    grad = probabilities - (1 - softmax.smoothing) * (ids == targets[:, None]).to(logits.dtype)
    if softmax.smoothing:
        loss = loss - softmax.smoothing * logits[:, :vocab].mean(-1)
        grad = grad - (softmax.smoothing / vocab) * (ids < vocab).to(logits.dtype)
    if softmax.softcap is not None:
        grad = grad * (1 - (logits / softmax.softcap).square())
    return (loss * weights).sum(), (grad * weights[:, None]).to(scores.dtype)
