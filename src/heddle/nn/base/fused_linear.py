"""Together: several maps of one input as one product; a device is busier with one large one than with three small."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heddle.core.shapes import Float
from heddle.nn.base.part import Linear, Module, Product, multiplied


class Together(Module):
    """x -> (first(x), second(x), ...). The maps belong to the part around it, which names and saves them.

    At rest, once `lay_together` has given the matrices one piece of memory of which they are slices, one product does.
    In training each multiplies by itself: on one H200 one product of three was no faster (545.7 against 545.8 thousand
    tokens/s, GPT-2), and laying the gradients side by side cost 11 ms of 409 (gates of a Llama of 1 B weights).
    """

    beside: Tensor | None  # all matrices as one, whose memory is theirs

    def __init__(self, *maps: Linear) -> None:
        super().__init__()
        self.maps = maps  # a tuple, so that torch does not name them a second time
        self.register_buffer("beside", None, persistent=False)
        self.product: Product | None = None  # one that stands for all maps at once

    def forward(self, x: Float[Tensor, "... inputs"]) -> tuple[Float[Tensor, "... _"], ...]:
        weight = self.weight()
        if weight is None and self.product is None:
            return tuple(one(x) for one in self.maps)
        first = self.maps[0]
        whole = first.weight if weight is None else weight
        y = multiplied(x, whole, self.bias(), first.product if self.product is None else self.product)
        parts = y.split([one.weight.shape[0] for one in self.maps], dim=-1)
        return tuple(one.adapted(part, x) for one, part in zip(self.maps, parts, strict=True))

    def weight(self) -> Tensor | None:
        """Return all matrices as one; None where they do not lie so, or learn."""
        if torch.is_grad_enabled() or self.beside is None:
            return None
        traced = torch.compiler.is_compiling()  # a compiler trusts that whoever laid them has just looked
        return self.beside if traced or self._holds(self.beside) else None

    def bias(self) -> Tensor | None:
        """Return all biases as one; maps stand together only where all or none have one."""
        found: list[Tensor] = [one.bias for one in self.maps if one.bias is not None]
        return torch.cat(found) if found else None

    @torch.no_grad()
    def lay(self) -> bool:
        """Give the matrices one piece of memory, and tell whether they had not."""
        if self.product is not None or any(one.product is not None for one in self.maps):
            return False
        if self.beside is not None and self._holds(self.beside):
            return False
        weights: list[Tensor] = [one.weight for one in self.maps]
        self.beside = torch.cat(weights)
        pieces = self.beside.split([one.weight.shape[0] for one in self.maps])
        for one, piece in zip(self.maps, pieces, strict=True):
            one.weight.data = piece
        return True

    def _holds(self, beside: Tensor) -> bool:
        """Tell whether all matrices still are slices of this memory."""
        place = beside.data_ptr()
        for one in self.maps:
            if one.weight.data_ptr() != place:
                return False
            place += one.weight.numel() * one.weight.element_size()
        return True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Together":
        self.beside = None  # the maps are about to get memory of their own
        super()._apply(fn, recurse)
        return self


def lay_together(model: nn.Module) -> bool:
    """Lay matrices that are multiplied by together side by side, and tell whether any moved; nothing else changes."""
    return any([module.lay() for module in model.modules() if isinstance(module, Together)])
