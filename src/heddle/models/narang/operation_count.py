"""Operation count: multiply-adds as Narang et al. (2021) counted them, by running a model on the meta device."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from heddle.models.networks import EncoderDecoder
from heddle.nn.base import Context, Part

PAIRS, SOURCE, TARGET = 128, 512, 114  # of the batch that the paper counted

aten = torch.ops.aten


def _product(left: Tensor, right: Tensor) -> int:
    return math.prod(left.shape) * right.shape[-1]


COUNTS: Mapping[Any, Callable[..., int]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: lambda _bias, left, right: _product(left, right),
    aten.baddbmm.default: lambda _bias, left, right: _product(left, right),
    aten.embedding.default: lambda table, ids: ids.numel() * table.numel(),  # a lookup is a product with one-hot rows
}


class Counter(TorchDispatchMode):
    """Counts the multiply-adds of all products and lookups; convolutions, sums and slices count nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in COUNTS:
            self.total += COUNTS[func](*(a for a in args if isinstance(a, Tensor)))
        return func(*args, **(kwargs or {}))


def paper_ops(model: EncoderDecoder) -> int:
    """Return the multiply-adds of one forward pass in training over the paper's batch."""
    source = torch.zeros(PAIRS, SOURCE, dtype=torch.long, device="meta")
    target = torch.zeros(PAIRS, TARGET, dtype=torch.long, device="meta")
    counter, beyond = Counter(), [0]

    def add(part: nn.Module, args: tuple[Any, ...], _output: object) -> None:
        assert isinstance(part, Part)
        beyond[0] += part.narang_lookup_ops(math.prod(args[0].shape[:2]))

    handles = [module.register_forward_hook(add) for module in model.modules() if isinstance(module, Part)]
    model.train()
    with torch.no_grad(), counter:
        hidden = model(target, Context(memory=model.encode(source)))
        model.head.nll(hidden, target)
    for handle in handles:
        handle.remove()
    return counter.total + beyond[0] + model.head.narang_lookup_ops(target.numel())
