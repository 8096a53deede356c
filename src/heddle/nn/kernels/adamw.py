"""AdamW (Loshchilov & Hutter 2019) in Triton: one large tensor is read and written once.

torch's fused kernel handles many tensors at once and, where they are large, reaches two thirds of the memory bandwidth.
Needs CUDA; `training/optimizers/adamw.py` imports it.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers and sizes one by one

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # numbers of each tensor that a program updates
WARPS = 8


@triton.jit
def _adamw(
    weight, gradient, mean, square, count, bad, divisor, learning_rate, weight_decay,
    log_beta1, log_beta2, beta1, beta2, eps, size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Update one block, unless the step is to be skipped."""
    if tl.load(bad) != 0:
        return
    steps, divide_by = tl.load(count), tl.load(divisor)
    correction1, correction2 = 1 - tl.exp(steps * log_beta1), 1 - tl.exp(steps * log_beta2)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    grad = tl.load(gradient + at, mask=inside) / divide_by
    new_mean, new_square = tl.load(mean + at, mask=inside), tl.load(square + at, mask=inside)
    old_weight = tl.load(weight + at, mask=inside)  # all loads are issued before the first store
    new_mean = new_mean + (grad - new_mean) * (1 - beta1)
    new_square = beta2 * new_square + (1 - beta2) * grad * grad
    tl.store(mean + at, new_mean, mask=inside)
    tl.store(square + at, new_square, mask=inside)
    update = (new_mean / correction1) / (tl.sqrt(new_square / correction2) + eps)
    tl.store(weight + at, old_weight * (1 - learning_rate * weight_decay) - learning_rate * update, mask=inside)


def adamw_update(weight: Tensor, state: dict[str, Tensor], group: dict[str, Any], bad: Tensor, divisor: Tensor) -> None:
    """Update a weight and its state, whose `step` is already counted; gradients are divided by `divisor` first."""
    assert weight.grad is not None
    beta1, beta2 = group["betas"]
    size = weight.numel()
    with torch.cuda.device_of(weight):
        _adamw[(triton.cdiv(size, BLOCK),)](
            weight, weight.grad, state["exp_avg"], state["exp_avg_sq"], state["step"], bad, divisor,
            group["lr"], group["weight_decay"], math.log(beta1) if beta1 else -math.inf,
            math.log(beta2) if beta2 else -math.inf, beta1, beta2, group["eps"], size,
            BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
