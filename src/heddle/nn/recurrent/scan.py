"""Scan: a linear recurrence over time in parallel, by pairs of pairs (Blelloch 1990; Martin & Cundy 2018)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Sequence = Float[Tensor, "batch length width"]


def linear_scan(decay: Sequence, value: Sequence) -> Sequence:
    """Return y[t] = keep[t] * y[t - 1] + new[t] with nothing before the first: linear work, logarithmic depth.

    Only products and sums of what is there: stable as the loop is for any keep between -1 and 1, zero too.
    """
    found: Tensor = _Scan.apply(decay, value)
    return found


def _scan(decay: Tensor, value: Tensor) -> Tensor:
    """Join each odd step with the even one before it, scan the half as many, and fill in the even ones."""
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
    """The scan with its gradient, which is a scan backwards: nothing of the way down is kept."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, value: Tensor) -> Tensor:
        y = _scan(decay, value)
        ctx.save_for_backward(decay, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        decay, y = ctx.saved_tensors
        next_decay = decay.roll(-1, 1)  # what a step hands on to the next; the last one's meets nothing
        value = _scan(next_decay.flip(1), gradient.flip(1)).flip(1)
        previous = torch.cat((torch.zeros_like(y[:, :1]), y[:, :-1]), 1)
        return value * previous, value
