"""Linear layers: one matrix, by torch's kernel or another (quantized, float8, GEMV), and fused ones for Q, K and V."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from heddle.core.shapes import Float
from heddle.nn.base.part import Module, Role
from heddle.nn.kernels import gemv_linear, uses_gemv


class Adapter(Module, ABC):
    """What learns beside a matrix that stays as it is; `nn/adapters/lora.py` lays one over a map that is built."""

    @abstractmethod
    def delta(self) -> Float[Tensor, "..."]:
        """Return what it adds to the matrix, in float32 at least."""


class LinearKernel(Module, ABC):
    """Another way to multiply by a matrix than torch's own: in floats of eight bits, or by numbers that lie packed."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "... inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> Float[Tensor, "... outputs"]:
        """Return x · weight + bias in the dtype of x; what holds its own numbers does not look at the weight."""

    def dense_weight(self, weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
        """Return the matrix that is meant."""
        return weight


class Linear(Module):
    """Multiply by a matrix in the dtype of the input; the weights keep their own."""

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
        """Return the matrix with what an adapter adds, for parts that multiply by it in a way of their own."""
        weight = self.weight if self.kernel is None else self.kernel.dense_weight(self.weight)
        return merged_weight(weight, self.adapter).to(dtype)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} -> {outputs}"


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kernel: LinearKernel | None) -> Tensor:
    """Return x · weight + bias in the dtype of x."""
    if kernel is not None:
        return kernel(x, weight, bias)  # type: ignore[no-any-return]
    if x.is_cuda and uses_gemv(x, weight):
        y = gemv_linear(x, weight)
        return y if bias is None else y + bias.to(x.dtype)
    return nn.functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def merged_weight(weight: Tensor, adapter: Adapter | None) -> Tensor:
    """Return a matrix with what an adapter adds to it."""
    return weight if adapter is None else (upcast(weight) + adapter.delta()).to(weight.dtype)


def upcast(x: Tensor) -> Tensor:
    """Return half-precision numbers as float32, others as they are: for norms, softmaxes and losses."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class FusedLinear(Module):
    """x -> (first(x), second(x), ...). The maps belong to the part around it, which names and saves them.

    At rest, once `lay_together` has given the matrices one piece of memory of which they are slices, one product does.
    In training each multiplies by itself: on one H200 one product of three was no faster (545.7 against 545.8 thousand
    tokens/s, GPT-2), and laying the gradients side by side cost 11 ms of 409 (gates of a Llama of 1 B weights).
    """

    fused_weight: Tensor | None  # all matrices as one, whose memory is theirs

    def __init__(self, *linears: Linear) -> None:
        super().__init__()
        self.linears = linears  # a tuple, so that torch does not name them a second time
        self.register_buffer("fused_weight", None, persistent=False)
        self.kernel: LinearKernel | None = None  # one that stands for all maps at once

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
        return (
            fused if torch.compiler.is_compiling() or self._is_current(fused) else None
        )  # compilers call `fuse` first

    def bias(self) -> Tensor | None:
        """Return all biases as one; maps stand together only where all or none have one."""
        found: list[Tensor] = [one.bias for one in self.linears if one.bias is not None]
        return torch.cat(found) if found else None

    @torch.no_grad()
    def fuse(self) -> bool:
        """Give the matrices one piece of memory, and tell whether they had not."""
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
        """Tell whether all matrices still are slices of this memory."""
        place = fused_weight.data_ptr()
        for one in self.linears:
            if one.weight.data_ptr() != place:
                return False
            place += one.weight.numel() * one.weight.element_size()
        return True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "FusedLinear":
        self.fused_weight = None  # the maps are about to get memory of their own
        super()._apply(fn, recurse)
        return self


def fuse_linears(model: nn.Module) -> bool:
    """Lay matrices that are multiplied by together side by side, and tell whether any moved; nothing else changes."""
    return any([module.fuse() for module in model.modules() if isinstance(module, FusedLinear)])
