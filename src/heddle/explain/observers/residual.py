"""Residual stream: what the embedding and each branch add to it, layer by layer, until the last norm reads the sum."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heddle.explain.inputs import Observer, Reading, Section, modules_of
from heddle.explain.observers.lens import refuse_without_residual_stream
from heddle.nn.base import upcast
from heddle.nn.stack import Branch


@dataclass(frozen=True)
class Contribution:
    """What one branch adds at each place: its length, and its share of the final stream (all shares sum to one)."""

    name: str
    norms: Tensor
    shares: Tensor

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"name": self.name, "norms": self.norms.tolist(), "shares": self.shares.tolist()}


@dataclass(frozen=True)
class Residual(Section):
    """The contributions to the residual stream, in order, and how far their sum is from it."""

    sequence: str
    contributions: tuple[Contribution, ...]
    error: float

    def plain(self) -> dict[str, Any]:
        contributions = [each.plain() for each in self.contributions]
        return {"sequence": self.sequence, "error": self.error, "contributions": contributions}


class ResidualObserver(Observer):
    """Keeps what each branch adds; what happens to the stream between branches counts as a contribution of its own."""

    def __init__(self, reading: Reading) -> None:
        refuse_without_residual_stream("residual", reading)
        self.sequence, self.added, self.last = reading.main, list[tuple[str, Tensor]](), list[Tensor]()

    def attach(self, hooks: contextlib.ExitStack) -> None:
        for name, branch in modules_of(self.sequence, Branch):
            hooks.callback(branch.register_forward_hook(self._see_branch(name)).remove)
        hooks.callback(self.sequence.tower.stack.register_forward_pre_hook(self._see_start).remove)
        hooks.callback(self.sequence.tower.stack.register_forward_hook(self._see_end).remove)

    def _see_start(self, _module: object, inputs: Any) -> None:
        self.added, self.last = [("embedding", inputs[0][0])], [inputs[0][0]]

    def _see_branch(self, name: str) -> Callable[[Any, Any, Any], None]:
        def see(branch: Branch, inputs: Any, output: Any) -> None:
            before, after = inputs[0][0], output[0][0]
            self._see_between(before, name)
            self.added.append((name + inputs[1].turn, after - before))
            self.last = [after]

        return see

    def _see_end(self, _module: object, _inputs: object, output: Any) -> None:
        self._see_between(output[0][0], "the end")

    def _see_between(self, stream: Tensor, name: str) -> None:
        """Keep what changed the stream outside of branches: a norm at the entry, an embedding of the turn."""
        if stream is not self.last[0] and not bool((stream == self.last[0]).all()):
            self.added.append((f"before {name}", stream - self.last[0]))
            self.last = [stream]

    def result(self) -> Residual:
        stream = upcast(self.last[0])
        length = stream.square().sum(-1).clamp(min=1e-30)
        total = sum((upcast(added) for _, added in self.added[1:]), upcast(self.added[0][1]))
        found = [
            Contribution(n, a.norm(dim=-1).cpu(), ((a * stream).sum(-1) / length).cpu())
            for n, a in ((name, upcast(added)) for name, added in self.added)
        ]
        return Residual(self.sequence.name, tuple(found), float((total - stream).abs().max()))
