"""Float8 training (Micikevicius et al. 2022): products in float8 with one scale for each tensor.

Each operand is scaled by its largest absolute value; gradients use the format with more exponent bits (e5m2). The
weights themselves keep their dtype.
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
MULTIPLE = 16  # sides of matrices must be multiples of this
MIN_CAPABILITY = (8, 9)  # the first GPUs with float8 products
MIN_MAXIMUM = 1e-12  # the least maximum: a tensor of zeros needs a scale


class Float8(LinearKernel):
    """x · weight + bias in float8 where shapes fit, else the plain product."""

    def forward(
        self, x: Float[Tensor, "... inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> Float[Tensor, "... outputs"]:
        flat = x.flatten(0, -2)
        if not len(flat) or any(side % MULTIPLE for side in (*flat.shape, *weight.shape)):
            return apply_linear(x, weight, bias, None)
        y: Tensor = _Float8Matmul.apply(flat, weight.to(x.dtype))  # cast as for the plain product
        y = y.unflatten(0, x.shape[:-1])
        return y if bias is None else y + bias.to(y.dtype)


class _Float8Matmul(torch.autograd.Function):
    """x · weight; both are saved for the backward in float8."""

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
    """Return a matrix in float8, its transpose, and the scale that restores the numbers."""
    if uses_float8_cast(x):
        return cast_to_float8(x, dtype, MIN_MAXIMUM)
    largest = torch.finfo(dtype).max
    scale = upcast(x.abs().amax()).clamp(min=MIN_MAXIMUM) / largest
    cast = (upcast(x) / scale).clamp(-largest, largest).to(dtype).contiguous()
    return cast, cast.t().contiguous(), scale.float()


def scaled_matmul(
    left: Tensor, right: Tensor, factor: Tensor, dtype: torch.dtype, fast_accumulation: bool = False
) -> Tensor:
    """Return left · right^T * scale; without a GPU the operands are cast to float32 first."""
    if not left.is_cuda:
        return (left.float() @ right.float().t() * factor).to(dtype)
    one = torch.ones_like(factor)
    return torch._scaled_mm(
        left, right.t(), scale_a=factor, scale_b=one, out_dtype=dtype, use_fast_accum=fast_accumulation
    )


def use_float8(model: nn.Module) -> int:
    """Use float8 in the linear layers of a model's blocks, and return in how many."""
    device = next(model.parameters()).device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise ConfigError("hardware.matmul", want=f"plain, because {name} has no float8", got="float8")
    chosen = [one.module for one in find_linears(model) if one.layer is not None and isinstance(one.module, Linear)]
    eligible = [one for one in chosen if one.roles["weight"] in (Role.INSIDE, Role.INTO_STREAM) and _fits(one)]
    if not eligible:
        want = f"plain, because no matrix has dimensions that are multiples of {MULTIPLE}"
        raise ConfigError("hardware.matmul", want=want, got="float8")
    for one in eligible:
        one.kernel = Float8()
    return len(eligible)


def _fits(one: Linear) -> bool:
    return all(side % MULTIPLE == 0 for side in one.weight.shape)
