"""AdamW: torch's fused one, with a kernel of our own for large tensors on a GPU, which take most of the time."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
LARGE = 1 << 20  # numbers; below, one launch for many tensors is worth more than a faster kernel


class AdamW(torch.optim.AdamW):
    """AdamW in the state and, but for roundings, the numbers of torch's; size and place decide who moves a tensor."""

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step along the gradients that there are."""
        assert closure is None
        large: list[tuple[Tensor, dict[str, Any]]] = []
        if self.found_inf is not None:
            large = [(p, group) for group in self.param_groups for p in group["params"] if moves(p)]
            self._move(large, self.found_inf)
        gradients = [p.grad for p, _ in large]
        for p, _ in large:
            p.grad = None  # moved already
        super().step()
        for (p, _), gradient in zip(large, gradients, strict=True):
            p.grad = gradient

    def _move(self, large: list[tuple[Tensor, dict[str, Any]]], bad: Tensor) -> None:
        if not large:
            return
        from heddle.nn.kernels import adamw as moving

        for p, _ in large:
            if not self.state[p]:
                zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.state[p] |= {"step": torch.zeros((), device=p.device)} | zeros
        torch._foreach_add_([self.state[p]["step"] for p, _ in large], [1 - bad] * len(large))
        shrink = torch.ones_like(bad) if self.grad_scale is None else self.grad_scale
        for p, group in large:
            moving.adamw_update(p, self.state[p], group, bad, shrink)


def moves(p: Tensor) -> bool:
    """Tell whether our kernel can move a tensor and is worth its launch."""
    if not (TRITON and p.is_cuda) or p.grad is None or p.numel() < LARGE:
        return False
    return p.dtype is p.grad.dtype is torch.float32 and p.is_contiguous() and p.grad.is_contiguous()
