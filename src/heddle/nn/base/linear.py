"""Together: several maps of one input as one product; a device is busier with one large one than with three small."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heddle.core.shapes import Float
from heddle.nn.base.part import Linear, LinearKernel, Module, apply_linear


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
        weight = self.weight()
        if weight is None and self.kernel is None:
            return tuple(one(x) for one in self.linears)
        first = self.linears[0]
        matrix = first.weight if weight is None else weight
        y = apply_linear(x, matrix, self.bias(), first.kernel if self.kernel is None else self.kernel)
        parts = y.split([one.weight.shape[0] for one in self.linears], dim=-1)
        return tuple(one.add_adapter(part, x) for one, part in zip(self.linears, parts, strict=True))

    def weight(self) -> Tensor | None:
        """Return all matrices as one; None where they do not lie so, or learn."""
        if torch.is_grad_enabled() or self.fused_weight is None:
            return None
        traced = torch.compiler.is_compiling()  # a compiler trusts that whoever laid them has just looked
        return self.fused_weight if traced or self._is_current(self.fused_weight) else None

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
