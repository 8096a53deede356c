"""Stacked optimizers: the arithmetic of all tensors of one shape at once, so that launches do not grow with depth."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heddle.core.system import compiler_fault

log = logging.getLogger("heddle")

MAX_SHAPES = 64  # of tensors, that an update is compiled for

Update = Callable[..., Tensor]
Key = tuple[object, ...]


class StackedOptimizer(Optimizer, ABC):
    """An optimizer whose state for tensors of one shape is one tensor, of which each parameter has a slice.

    Nothing in a step waits for the device. Where `found_inf` is set, a step that it marks as bad changes nothing,
    decided on the device.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None  # what gradients are divided by first, as torch's fused optimizers have it

    def __init__(self, parameters: Iterable[nn.Parameter], defaults: dict[str, Any]) -> None:
        super().__init__(parameters, defaults)
        self._stacks: dict[Key, tuple[Tensor, tuple[Tensor, ...]]] = {}
        self._compiled = False
        self._updates: dict[Update, Update] = {}

    def compile(self) -> None:
        """Have the arithmetic of a step compiled when it is first taken: fewer kernels, less memory gone through."""
        self._compiled = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step along the gradients that there are."""
        assert closure is None
        for number, group in enumerate(self.param_groups):
            for key, same in _by_shape(group["params"]).items():
                self._move(same, (number, *key), group)

    @abstractmethod
    def _move(self, same: list[Tensor], key: Key, group: dict[str, Any]) -> None:
        """Move parameters of one shape."""

    def _stacked(self, key: Key, same: list[Tensor], name: str, start: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a state of parameters of one shape as one tensor; what was loaded or is missing is stacked anew."""
        stack, slices = self._stacks.get((name, *key), (None, ()))
        own = [self.state[p].get(name) for p in same]
        if stack is None or len(own) != len(slices) or any(a is not b for a, b in zip(own, slices, strict=True)):
            stack = torch.stack([start(p) if o is None else o for p, o in zip(same, own, strict=True)])
            slices = stack.unbind()
            for p, one in zip(same, slices, strict=True):
                self.state[p][name] = one
            self._stacks[name, *key] = stack, slices
        return stack

    def _run(self, update: Update, gradient: Tensor, *rest: Any) -> Tensor:
        """Run the arithmetic of an update, compiled where that was asked for and is possible."""
        if not self._compiled:
            return update(gradient, *rest)
        if update not in self._updates:
            self._updates[update] = _compiled_by_shape(update, type(self).__name__)
        return self._updates[update](gradient, *rest)


def _by_shape(parameters: list[Tensor]) -> dict[Key, list[Tensor]]:
    """Return the parameters with a gradient, those of one shape together."""
    found: dict[Key, list[Tensor]] = {}
    for p in parameters:
        if p.grad is not None:
            found.setdefault((p.shape, p.dtype, p.device), []).append(p)
    return found


def _compiled_by_shape(update: Update, name: str) -> Update:
    """Return an update that is compiled once for each shape of its first argument, and runs eagerly if that fails."""
    compiled, seen, eager = torch.compile(update, dynamic=False), set[torch.Size](), False

    def run(gradient: Tensor, *rest: Any) -> Tensor:
        nonlocal eager
        if eager:
            return update(gradient, *rest)
        if gradient.shape in seen:
            return compiled(gradient, *rest)
        seen.add(gradient.shape)
        try:
            with torch._dynamo.config.patch(recompile_limit=MAX_SHAPES):  # one graph for each shape is what we want
                return compiled(gradient, *rest)
        except Exception as error:
            if (reason := compiler_fault(error)) is None:
                raise
            log.warning("%s could not be compiled and runs eagerly, more slowly (%s)", name, reason)
            eager = True
            return update(gradient, *rest)

    return run
