"""Parallel scan: a linear recurrence over time in logarithmic depth (Blelloch 1990; Martin & Cundy 2018)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Sequence = Float[Tensor, "batch length width"]


def linear_scan(decay: Sequence, value: Sequence) -> Sequence:
    """Return y[t] = keep[t] * y[t - 1] + new[t] with y[-1] = 0: linear work, logarithmic depth.

    It only multiplies and adds, so it is as stable as the loop for any decay between -1 and 1, zero included.
    """
    found: Tensor = _Scan.apply(decay, value)
    return found


def _scan(decay: Tensor, value: Tensor) -> Tensor:
    """Combine each odd step with the even one before it, scan those, and fill in the even steps."""
    if value.shape[1] == 1:
        return value.clone()
    odd_keep, odd_new = decay[:, 1::2], value[:, 1::2]
    pairs = odd_new.shape[1]
    even_keep, even_new = decay[:, :-1:2], value[:, :-1:2]
    odd = _scan(odd_keep * even_keep[:, :pairs], torch.addcmul(odd_new, odd_keep, even_new[:, :pairs]))
    y = torch.empty_like(value)
    y[:, 0] = value[:, 0]
    y[:, 1::2] = odd
    rest = value.shape[1] - pairs - 1  # even steps after the first
    y[:, 2::2] = torch.addcmul(value[:, 2::2], decay[:, 2::2], odd[:, :rest])
    return y


class _Scan(torch.autograd.Function):
    """The scan and its gradient, a reversed scan; no intermediate level is saved."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, value: Tensor) -> Tensor:
        y = _scan(decay, value)
        ctx.save_for_backward(decay, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        decay, y = ctx.saved_tensors
        next_decay = decay.roll(-1, 1)  # the last one is not used
        value = _scan(next_decay.flip(1), gradient.flip(1)).flip(1)
        previous = torch.cat((torch.zeros_like(y[:, :1]), y[:, :-1]), 1)
        return value * previous, value
