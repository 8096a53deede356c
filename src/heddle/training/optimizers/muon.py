"""Muon: momentum made orthogonal (Jordan et al. 2024), all matrices of one shape at once."""

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from heddle.core.system import compiler_fault

log = logging.getLogger("heddle")

Matrices = Float[Tensor, "count rows columns"]

# A quintic whose slope at zero is as steep as can be: singular values end between about 0.7 and 1.2, which is enough.
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7  # of a norm that is divided by
SHAPES = 64  # of matrices, at most, that are compiled for


class Muon(Optimizer):
    """w = (1 - rate * decay) * w - rate * scale * orthogonal(nesterov momentum), as torch's Muon has it.

    scale = sqrt(max(1, rows / columns)). Matrices of one shape go through the iteration as one batched product, so that
    the number of launches does not grow with depth, and their momentum is one tensor, of which each has a slice.
    The products are in `dtype`, that of the run: in bfloat16 they take half the time on a chip that has it, and many
    times as long on one that has not; None leaves matrices as they are.
    Where `found_inf` is set, a step that it marks as bad changes nothing, decided on the device without synchronizing.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None  # what gradients are divided by first, as torch's fused optimizers have it

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
        self._pieces: dict[tuple[object, ...], tuple[Matrices, tuple[Tensor, ...]]] = {}
        self._change: Callable[..., Matrices] = muon_update

    def compile(self) -> None:
        """Have the arithmetic of a step compiled when it is first taken: fewer kernels, less memory gone through."""
        compiled, seen = torch.compile(muon_update, dynamic=False), set[torch.Size]()

        def change(gradient: Matrices, *rest: Any) -> Matrices:
            if gradient.shape in seen:
                return compiled(gradient, *rest)
            seen.add(gradient.shape)
            try:
                with torch._dynamo.config.patch(recompile_limit=SHAPES):  # one graph for each shape is what we want
                    return compiled(gradient, *rest)
            except Exception as error:
                if (reason := compiler_fault(error)) is None:
                    raise
                log.warning("Muon could not be compiled and runs eagerly, more slowly (%s)", reason)
                self._change = muon_update
                return muon_update(gradient, *rest)

        self._change = change

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step along the gradients that there are."""
        assert closure is None
        for number, group in enumerate(self.param_groups):
            for key, same in self._by_shape(group["params"]).items():
                self._move(same, self._momentum((number, *key), same), group)

    def _by_shape(self, matrices: list[Tensor]) -> dict[tuple[object, ...], list[Tensor]]:
        found: dict[tuple[object, ...], list[Tensor]] = {}
        for matrix in matrices:
            if matrix.grad is not None:
                found.setdefault((matrix.shape, matrix.dtype, matrix.device), []).append(matrix)
        return found

    def _momentum(self, key: tuple[object, ...], same: list[Tensor]) -> Matrices:
        """Return the momentum of matrices of one shape as one tensor; what was loaded or is missing is stacked anew."""
        piece, slices = self._pieces.get(key, (None, ()))
        own = [self.state[matrix].get("momentum_buffer") for matrix in same]
        if piece is None or len(own) != len(slices) or any(a is not b for a, b in zip(own, slices, strict=True)):
            piece = torch.stack([torch.zeros_like(m) if o is None else o for m, o in zip(same, own, strict=True)])
            slices = piece.unbind()
            for matrix, one in zip(same, slices, strict=True):
                self.state[matrix]["momentum_buffer"] = one
            self._pieces[key] = piece, slices
        return piece

    def _move(self, same: list[Tensor], speed: Matrices, group: dict[str, Any]) -> None:
        """Move matrices of one shape."""
        bad, rate = None if self.found_inf is None else self.found_inf.bool(), group["lr"]
        gradient = torch.stack([matrix.grad for matrix in same if matrix.grad is not None])
        dtype = gradient.dtype if self.dtype is None else self.dtype
        change = self._change(gradient, speed, group["momentum"], dtype, bad, self.grad_scale)
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
