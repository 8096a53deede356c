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
from heddle.nn.base import Linear, LinearKernel, Role, apply_linear, upcast
from heddle.nn.kernels import cast_to_float8, uses_float8_cast

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # sides of matrices must be multiples of it
MIN_CAPABILITY = (8, 9)  # the first GPUs with such products
MIN_MAXIMUM = 1e-12  # of a largest number: a tensor of zeros has none


class Float8(LinearKernel):
    """x · weight + bias, where both fit; else the plain product."""

    def forward(
        self, x: Float[Tensor, "... inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> Float[Tensor, "... outputs"]:
        flat = x.flatten(0, -2)
        if not len(flat) or any(side % MULTIPLE for side in (*flat.shape, *weight.shape)):
            return apply_linear(x, weight, bias, None)
        y: Tensor = _Float8Matmul.apply(flat, weight.to(x.dtype))  # as plain products see it
        y = y.unflatten(0, x.shape[:-1])
        return y if bias is None else y + bias.to(y.dtype)


class _Float8Matmul(torch.autograd.Function):
    """x · weight; what the backward needs of both is kept in eight bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, x8_transposed, x_scale = to_float8(x, FORWARD)
        w8, w8_transposed, weight_scale = to_float8(weight, FORWARD)
        ctx.save_for_backward(x8_transposed, x_scale, w8_transposed, weight_scale)
        ctx.dtype = x.dtype
        return scaled_matmul(x8, w8, x_scale * weight_scale, x.dtype, fast_accumulation=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x8_transposed, x_scale, w8_transposed, weight_scale = ctx.saved_tensors
        g8, g8_transposed, gradient_scale = to_float8(gradient, BACKWARD)
        x_gradient = scaled_matmul(g8, w8_transposed, gradient_scale * weight_scale, ctx.dtype)
        if not ctx.needs_input_grad[1]:
            return x_gradient, None
        return x_gradient, scaled_matmul(g8_transposed, x8_transposed, gradient_scale * x_scale, ctx.dtype)


def to_float8(
    x: Float[Tensor, "rows columns"], dtype: torch.dtype
) -> tuple[Float[Tensor, "rows columns"], Float[Tensor, "columns rows"], Float[Tensor, ""]]:
    """Return a matrix in eight bits, the same with rows and columns changed, and what makes them the old numbers."""
    if uses_float8_cast(x):
        return cast_to_float8(x, dtype, MIN_MAXIMUM)
    largest = torch.finfo(dtype).max
    factor = upcast(x.abs().amax()).clamp(min=MIN_MAXIMUM) / largest
    cast = (upcast(x) / factor).clamp(-largest, largest).to(dtype).contiguous()
    return cast, cast.t().contiguous(), factor.float()


def scaled_matmul(
    left: Tensor, right: Tensor, factor: Tensor, dtype: torch.dtype, fast_accumulation: bool = False
) -> Tensor:
    """Return left · right^T * factor; off a GPU the small floats are widened first."""
    if not left.is_cuda:
        return (left.float() @ right.float().t() * factor).to(dtype)
    one = torch.ones_like(factor)
    return torch._scaled_mm(
        left, right.t(), scale_a=factor, scale_b=one, out_dtype=dtype, use_fast_accum=fast_accumulation
    )


def use_float8(model: nn.Module) -> int:
    """Let the maps inside a model's layers multiply in eight bits, and return how many do."""
    device = next(model.parameters()).device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise ConfigError("hardware.matmul", want=f"plain, for {name} has no floats of eight bits", got="float8")
    chosen = [
        found.module for found in find_linears(model) if found.layer is not None and isinstance(found.module, Linear)
    ]
    eligible = [one for one in chosen if one.roles["weight"] in (Role.INSIDE, Role.INTO_STREAM) and _fits(one)]
    if not eligible:
        raise ConfigError(
            "hardware.matmul", want=f"plain, for no map has sides that are multiples of {MULTIPLE}", got="float8"
        )
    for one in eligible:
        one.kernel = Float8()
    return len(eligible)


def _fits(one: Linear) -> bool:
    return all(side % MULTIPLE == 0 for side in one.weight.shape)
