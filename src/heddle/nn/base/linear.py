"""Linear layers: one matrix, by torch's kernel or another (quantized, float8, GEMV), and fused ones for Q, K and V."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from heddle.core.shapes import Float
from heddle.nn.base.part import Module, Role
from heddle.nn.kernels import gemv_linear, uses_gemv


class Adapter(Module, ABC):
    """A trained addition to a frozen matrix; see `nn/adapters/lora.py`."""

    @abstractmethod
    def delta(self) -> Float[Tensor, "..."]:
        """Return what it adds to the matrix, in float32 or more."""


class LinearKernel(Module, ABC):
    """Another way to multiply by a matrix than torch's: in float8, or by quantized weights."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "... inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> Float[Tensor, "... outputs"]:
        """Return x · weight + bias in the dtype of x; quantized kernels have their own numbers and ignore `weight`."""

    def dense_weight(self, weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
        """Return the matrix as floats."""
        return weight


class Linear(Module):
    """Linear layer: x · weight + bias in the dtype of the input; the weights keep their own dtype."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, role: Role = Role.INSIDE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.roles = {"weight": role, "bias": Role.BIAS}
        self.adapter: Adapter | None = None
        self.kernel: LinearKernel | None = None

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        y = apply_linear(x, self.weight, self.bias, self.kernel)
        return y if self.adapter is None else y + self.adapter(x)

    def dense_weight(self, dtype: torch.dtype) -> Float[Tensor, "outputs inputs"]:
        """Return the matrix with its adapter merged, for parts that multiply by it in another way."""
        weight = self.weight if self.kernel is None else self.kernel.dense_weight(self.weight)
        return merged_weight(weight, self.adapter).to(dtype)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} -> {outputs}"


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kernel: LinearKernel | None) -> Tensor:
    """Return x · weight + bias in the dtype of x, by the fastest kernel."""
    if kernel is not None:
        return kernel(x, weight, bias)  # type: ignore[no-any-return]
    if x.is_cuda and uses_gemv(x, weight):
        y = gemv_linear(x, weight)
        return y if bias is None else y + bias.to(x.dtype)
    return nn.functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def merged_weight(weight: Tensor, adapter: Adapter | None) -> Tensor:
    """Return a matrix with an adapter merged into it."""
    return weight if adapter is None else (upcast(weight) + adapter.delta()).to(weight.dtype)


def upcast(x: Tensor) -> Tensor:
    """Return half precision as float32, other dtypes unchanged: for norms, softmaxes and losses."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class FusedLinear(Module):
    """Fused projections: x -> (first(x), second(x), ...) by one product; the linear layers belong to the part around.

    For inference `fuse_linears` makes the matrices slices of one, so that one product suffices. In training each is
    multiplied by itself: on one H200 one product of three was no faster (545.7 against 545.8 thousand tokens/s, GPT-2),
    and concatenating the gradients cost 11 ms of 409 (gates of a Llama with 1 B weights).
    """

    fused_weight: Tensor | None  # all matrices as one; theirs are slices of it

    def __init__(self, *linears: Linear) -> None:
        super().__init__()
        self.linears = linears  # a tuple, so that torch does not register them again
        self.register_buffer("fused_weight", None, persistent=False)
        self.kernel: LinearKernel | None = None  # for all layers at once

    def forward(self, x: Float[Tensor, "... inputs"]) -> tuple[Float[Tensor, "... _"], ...]:
        weight = None if self.fused_weight is None else self.weight(self.fused_weight)
        if weight is None and self.kernel is None:
            return tuple([one(x) for one in self.linears])
        first = self.linears[0]
        matrix = first.weight if weight is None else weight
        y = apply_linear(x, matrix, self.bias(), first.kernel if self.kernel is None else self.kernel)
        parts = y.split([one.weight.shape[0] for one in self.linears], dim=-1)
        pairs = zip(self.linears, parts, strict=True)
        return tuple([part if one.adapter is None else part + one.adapter(x) for one, part in pairs])

    def weight(self, fused: Tensor) -> Tensor | None:
        """Return the fused matrix; None where gradients are needed or the matrices no longer are slices of it."""
        if torch.is_grad_enabled():
            return None
        return fused if torch.compiler.is_compiling() or self._is_current(fused) else None  # compilers `fuse` first

    def bias(self) -> Tensor | None:
        """Return all biases as one; either all layers have one or none has."""
        found: list[Tensor] = [one.bias for one in self.linears if one.bias is not None]
        return torch.cat(found) if found else None

    @torch.no_grad()
    def fuse(self) -> bool:
        """Make the matrices slices of one tensor, and tell whether they were not."""
        if self.kernel is not None or any(one.kernel is not None for one in self.linears):
            return False
        if self.fused_weight is not None and self._is_current(self.fused_weight):
            return False
        weights: list[Tensor] = [one.weight for one in self.linears]
        self.fused_weight = torch.cat(weights)
        pieces = self.fused_weight.split([one.weight.shape[0] for one in self.linears])
        for one, piece in zip(self.linears, pieces, strict=True):
            one.weight.data = piece
        return True

    def _is_current(self, fused_weight: Tensor) -> bool:
        """Tell whether all matrices are still slices of this one."""
        place = fused_weight.data_ptr()
        for one in self.linears:
            if one.weight.data_ptr() != place:
                return False
            place += one.weight.numel() * one.weight.element_size()
        return True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FusedLinear":
        self.fused_weight = None  # the matrices are about to get memory of their own
        super()._apply(fn, recurse)
        return self


def fuse_linears(model: nn.Module) -> bool:
    """Fuse all fused projections of a model for inference, and tell whether any matrix moved; no value changes."""
    return any([module.fuse() for module in model.modules() if isinstance(module, FusedLinear)])
