"""Adafactor (Shazeer & Stern 2018): factored second moments, update clipping, steps in proportion to each parameter."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heddle.training.optimizers.stacked import Key, StackedOptimizer


class AdafactorOptions(NamedTuple):
    """What the arithmetic of a step depends on, by the paper's symbols: d, the exponent of beta2, epsilon 1."""

    clip_threshold: float
    decay_exponent: float
    eps: float


class Adafactor(StackedOptimizer):
    """w = w - rate * max(eps, rms(w)) * clipped(gradient / sqrt(second moment)), without momentum.

    Of a tensor of two or more dimensions the second moment is the product of a row and a column over the last two.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], rate: float, options: AdafactorOptions, min_scale: float
    ) -> None:
        super().__init__(parameters, {"lr": rate})
        self.options, self.min_scale = options, min_scale

    def _move(self, same: list[Tensor], key: Key, group: dict[str, Any]) -> None:
        bad = None if self.found_inf is None else self.found_inf.bool()
        gradient = torch.stack([p.grad for p in same if p.grad is not None])
        steps = self._stacked(key, same, "step", lambda p: torch.zeros((), device=p.device))
        if same[0].dim() < 2:
            moments: tuple[Tensor, ...] = (self._stacked(key, same, "exp_avg_sq", torch.zeros_like),)
        else:
            row = self._stacked(key, same, "exp_avg_sq_row", lambda p: torch.zeros_like(p[..., 0]))
            moments = (row, self._stacked(key, same, "exp_avg_sq_col", lambda p: torch.zeros_like(p[..., 0, :])))
        change = self._run(adafactor_update, gradient, moments, steps, self.options, bad, self.grad_scale)
        norms = torch.stack(torch._foreach_norm(same))
        scale = (norms / math.sqrt(same[0].numel())).clamp(min=self.min_scale) * group["lr"]
        torch._foreach_sub_(same, list((change * _per_tensor(scale, change)).unbind()))


def adafactor_update(
    gradient: Tensor,
    moments: tuple[Tensor, ...],
    steps: Tensor,
    options: AdafactorOptions,
    bad: Tensor | None,
    grad_divisor: Tensor | None,
) -> Tensor:
    """Move the second moments on by the gradient, and return the clipped update; a bad step moves nothing.

    The moments are those of a row and a column, or of the tensors themselves where they are vectors.
    """
    gradient = gradient if grad_divisor is None else gradient / grad_divisor
    share, squares = _next_share(steps, options, bad), gradient.square() + options.eps
    if len(moments) == 1:
        _move_towards(moments[0], squares, share, bad)
        return _clipped(gradient * moments[0].rsqrt(), options, bad)
    row, column = moments
    _move_towards(row, squares.mean(-1), share, bad)
    _move_towards(column, squares.mean(-2), share, bad)
    rows = (row / row.mean(-1, keepdim=True)).rsqrt()[..., None]
    return _clipped(gradient * rows * column.rsqrt()[..., None, :], options, bad)


def _next_share(steps: Tensor, options: AdafactorOptions, bad: Tensor | None) -> Tensor:
    """Count a step, and return how far second moments move in it: 1 - beta2 = t^-0.8, which is 1 at first."""
    steps.add_(1 if bad is None else (~bad).to(steps.dtype))
    return steps.pow(-options.decay_exponent)


def _move_towards(moment: Tensor, target: Tensor, share: Tensor, bad: Tensor | None) -> None:
    moved = moment.lerp(target, _per_tensor(share, moment).to(moment.dtype))
    moment.copy_(moved if bad is None else torch.where(bad, moment, moved))


def _clipped(update: Tensor, options: AdafactorOptions, bad: Tensor | None) -> Tensor:
    """Return updates whose root mean square is at most the threshold, for each tensor of the stack."""
    rms = update.reshape(len(update), -1).square().mean(1).sqrt()
    update = update / _per_tensor((rms / options.clip_threshold).clamp(min=1), update)
    return update if bad is None else torch.where(bad, 0.0, update)


def _per_tensor(values: Tensor, stack: Tensor) -> Tensor:
    """Return one value for each tensor of a stack, in a shape that multiplies the stack."""
    return values.reshape(-1, *[1] * (stack.dim() - 1))
