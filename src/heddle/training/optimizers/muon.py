"""Muon: momentum made orthogonal (Jordan et al. 2024), all matrices of one shape at once."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.training.optimizers.stacked import Key, StackedOptimizer

Matrices = Float[Tensor, "count rows columns"]

# A quintic whose slope at zero is as steep as can be: singular values end between about 0.7 and 1.2, which is enough.
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7  # of a norm that is divided by


class Muon(StackedOptimizer):
    """w = (1 - rate * decay) * w - rate * scale * orthogonal(nesterov momentum), as torch's Muon has it.

    scale = sqrt(max(1, rows / columns)). Matrices of one shape go through the iteration as one batched product. The
    products are in `dtype`, that of the run: in bfloat16 they take half the time on a chip that has it, and many times
    as long on one that has not; None leaves matrices as they are.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        rate: float,
        momentum: float,
        decay: float,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(matrices, {"lr": rate, "momentum": momentum, "weight_decay": decay})
        self.dtype = dtype

    def _move(self, same: list[Tensor], key: Key, group: dict[str, Any]) -> None:
        bad, rate = None if self.found_inf is None else self.found_inf.bool(), group["lr"]
        gradient = torch.stack([matrix.grad for matrix in same if matrix.grad is not None])
        speed = self._stacked(key, same, "momentum_buffer", torch.zeros_like)
        dtype = gradient.dtype if self.dtype is None else self.dtype
        change = self._run(muon_update, gradient, speed, group["momentum"], dtype, bad, self.grad_scale)
        if group["weight_decay"]:
            kept = 1 - rate * group["weight_decay"]
            torch._foreach_mul_(same, kept if bad is None else torch.where(bad, 1.0, kept))
        rows, columns = same[0].shape
        torch._foreach_add_(same, list(change.unbind()), alpha=-math.sqrt(max(1.0, rows / columns)) * rate)


def muon_update(
    gradient: Matrices,
    speed: Matrices,
    momentum: float,
    dtype: torch.dtype,
    bad: Tensor | None,
    grad_divisor: Tensor | None,
) -> Matrices:
    """Move momentum on by the gradient, and return both made orthogonal; a bad step moves nothing and returns zeros."""
    if grad_divisor is not None:
        gradient = gradient / grad_divisor
    if bad is not None:
        gradient = torch.where(bad, speed, gradient)  # momentum then stays as it is, in the same bits
    speed.lerp_(gradient, 1 - momentum)
    change = orthogonal(gradient.lerp(speed, momentum).to(dtype)).to(speed.dtype)
    return change if bad is None else torch.where(bad, 0.0, change)


def orthogonal(matrices: Matrices) -> Matrices:
    """Return matrices with the same singular vectors and singular values near one, by Newton and Schulz.

    The products are of the smaller side, in the dtype of the matrices.
    """
    first, third, fifth = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth), x, beta=first)
    return x.mT if tall else x
