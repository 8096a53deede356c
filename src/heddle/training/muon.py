"""Muon: momentum made orthogonal (Jordan et al. 2024), all matrices of one shape at once."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

Matrices = Float[Tensor, "count rows columns"]

# A quintic whose slope at zero is as steep as can be: singular values end between about 0.7 and 1.2, which is enough.
QUINTIC = (3.4445, -4.7750, 2.0315)
TURNS = 5
LEAST = 1e-7  # of a norm that is divided by


class Muon(Optimizer):
    """w = (1 - rate * decay) * w - rate * scale * orthogonal(nesterov momentum), as torch's Muon has it.

    scale = sqrt(max(1, rows / columns)). Matrices of one shape go through the iteration as one batched product, so that
    the number of launches does not grow with depth. Where `found_inf` is set, a step that it marks as bad changes
    nothing, decided on the device; nobody waits.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None  # what gradients are divided by first, as torch's fused optimizers have it

    def __init__(self, matrices: Iterable[nn.Parameter], rate: float, momentum: float, decay: float) -> None:
        super().__init__(matrices, {"lr": rate, "momentum": momentum, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step along the gradients that there are."""
        assert closure is None
        for group in self.param_groups:
            for same in self._by_shape(group["params"]):
                self._move(same, group)

    def _by_shape(self, matrices: list[Tensor]) -> Iterable[list[Tensor]]:
        found: dict[tuple[object, ...], list[Tensor]] = {}
        for matrix in matrices:
            if matrix.grad is not None:
                found.setdefault((matrix.shape, matrix.dtype, matrix.device), []).append(matrix)
                if "momentum_buffer" not in self.state[matrix]:
                    self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        return found.values()

    def _move(self, same: list[Tensor], group: dict[str, Any]) -> None:
        """Move matrices of one shape."""
        buffers = [self.state[matrix]["momentum_buffer"] for matrix in same]
        gradient = torch.stack([matrix.grad for matrix in same if matrix.grad is not None])
        speed = torch.stack(buffers)
        rate: float | Tensor = group["lr"]
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        if self.found_inf is not None:
            bad = self.found_inf.bool()
            gradient = torch.where(bad, speed, gradient)  # momentum then stays as it is, in the same bits
            rate = torch.where(bad, 0.0, rate)
        speed.lerp_(gradient, 1 - group["momentum"])
        torch._foreach_copy_(buffers, speed.unbind())
        change = orthogonal(gradient.lerp_(speed, group["momentum"]))
        rows, columns = same[0].shape
        if group["weight_decay"]:
            torch._foreach_mul_(same, 1 - rate * group["weight_decay"])
        change = change.to(speed.dtype) * (-math.sqrt(max(1.0, rows / columns)) * rate)
        torch._foreach_add_(same, list(change.unbind()))


def orthogonal(matrices: Matrices) -> Matrices:
    """Return matrices with the same singular vectors and singular values near one, by Newton and Schulz, in bfloat16.

    The products are of the smaller side.
    """
    first, third, fifth = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.bfloat16()
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=LEAST)
    for _ in range(TURNS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth), x, beta=first)
    return x.mT if tall else x
