"""Float8: products of training in floats of eight bits, scaled tensor by tensor (Micikevicius et al. 2022).

Both sides are brought into the range of the small floats by one factor each, the largest number deciding; gradients
get the kind with more exponent and less fraction. The matrices themselves stay as they are.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heddle.core import ConfigError
from heddle.nn.adapters import find_linears
from heddle.nn.base import Linear, Product, Role, multiplied, wide
from heddle.nn.kernels import cast_to_float8, uses_float8_cast

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
EVEN = 16  # sides of matrices must be multiples of it
ABLE = (8, 9)  # the first GPUs with such products
LEAST = 1e-12  # of a largest number: a tensor of zeros has none


class Float8(Product):
    """x · weight + bias, where both fit; else the plain product."""

    def forward(
        self, x: Float[Tensor, "... inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> Float[Tensor, "... outputs"]:
        flat = x.flatten(0, -2)
        if not len(flat) or any(side % EVEN for side in (*flat.shape, *weight.shape)):
            return multiplied(x, weight, bias, None)
        y: Tensor = _Times.apply(flat, weight.to(x.dtype))  # as plain products see it
        y = y.unflatten(0, x.shape[:-1])
        return y if bias is None else y + bias.to(y.dtype)


class _Times(torch.autograd.Function):
    """x · weight; what the backward needs of both is kept in eight bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, x8_standing, by_x = in_eight_bits(x, FORWARD)
        w8, w8_standing, by_w = in_eight_bits(weight, FORWARD)
        ctx.save_for_backward(x8_standing, by_x, w8_standing, by_w)
        ctx.dtype = x.dtype
        return times(x8, w8, by_x * by_w, x.dtype, quick=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x8_standing, by_x, w8_standing, by_w = ctx.saved_tensors
        g8, g8_standing, by_g = in_eight_bits(gradient, BACKWARD)
        to_x = times(g8, w8_standing, by_g * by_w, ctx.dtype)
        if not ctx.needs_input_grad[1]:
            return to_x, None
        return to_x, times(g8_standing, x8_standing, by_g * by_x, ctx.dtype)


def in_eight_bits(
    x: Float[Tensor, "rows columns"], dtype: torch.dtype
) -> tuple[Float[Tensor, "rows columns"], Float[Tensor, "columns rows"], Float[Tensor, ""]]:
    """Return a matrix in eight bits, the same with rows and columns changed, and what makes them the old numbers."""
    if uses_float8_cast(x):
        return cast_to_float8(x, dtype, LEAST)
    most = torch.finfo(dtype).max
    factor = wide(x.abs().amax()).clamp(min=LEAST) / most
    small = (wide(x) / factor).clamp(-most, most).to(dtype).contiguous()
    return small, small.t().contiguous(), factor.float()


def times(left: Tensor, right: Tensor, factor: Tensor, dtype: torch.dtype, quick: bool = False) -> Tensor:
    """Return left · right^T * factor; off a GPU the small floats are widened first."""
    if not left.is_cuda:
        return (left.float() @ right.float().t() * factor).to(dtype)
    one = torch.ones_like(factor)
    return torch._scaled_mm(left, right.t(), scale_a=factor, scale_b=one, out_dtype=dtype, use_fast_accum=quick)


def use_float8(model: nn.Module) -> int:
    """Let the maps inside a model's layers multiply in eight bits, and return how many do."""
    device = next(model.parameters()).device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < ABLE:
        name = torch.cuda.get_device_name(device)
        raise ConfigError("hardware.products", want=f"plain, for {name} has no floats of eight bits", got="float8")
    chosen = [found.to for found in find_linears(model) if found.layer is not None and isinstance(found.to, Linear)]
    fitting = [one for one in chosen if one.roles["weight"] in (Role.INSIDE, Role.INTO_STREAM) and _fits(one)]
    if not fitting:
        raise ConfigError(
            "hardware.products", want=f"plain, for no map has sides that are multiples of {EVEN}", got="float8"
        )
    for one in fitting:
        one.product = Float8()
    return len(fitting)


def _fits(one: Linear) -> bool:
    return all(side % EVEN == 0 for side in one.weight.shape)
