"""Watching a forward pass: read-only hooks that see what each part got and gave, one part at a time."""

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from heddle.explain.inputs.forward import Reading, TokenSequence
from heddle.nn.base import Context, Part
from heddle.nn.stack import Block, Branch, Sum, SumSlot


@dataclass(frozen=True)
class PartCall:
    """One part of a branch with its input: what it computed is recomputed from this, by the part's own methods."""

    sequence: TokenSequence
    name: str  # of the module, with the turn of a loop
    part: Part
    x: Tensor
    ctx: Context
    slot: object  # of the state; None: it starts without one


class Section(ABC):
    """One thing to look at: as plain data."""

    @abstractmethod
    def plain(self) -> Any:
        """Return the numbers as plain data."""


class Observer(ABC):
    """Looks at a forward pass by hooks, which change nothing; its constructor refuses a model that lacks the thing."""

    @abstractmethod
    def __init__(self, reading: Reading) -> None: ...

    @abstractmethod
    def attach(self, hooks: contextlib.ExitStack) -> None:
        """Attach the hooks."""

    @abstractmethod
    def result(self) -> Section:
        """Return what was seen."""


def observe(reading: Reading, observers: Sequence[Observer]) -> Tensor:
    """Run the model once while observers look on; return its logits."""
    with contextlib.ExitStack() as hooks, reading.looking():
        for observer in observers:
            observer.attach(hooks)
        return reading.forward()


def modules_of(sequence: TokenSequence, kind: type[nn.Module]) -> Iterator[tuple[str, Any]]:
    """Yield every module of a kind in the layers of a sequence, by name."""
    for name, module in sequence.tower.stack.named_modules():
        if isinstance(module, kind):
            yield f"{sequence.prefix}stack.{name}".rstrip("."), module


def parts_of(reading: Reading) -> list[tuple[str, Part]]:
    """Return every part of every branch, those inside of sums too."""
    found: list[tuple[str, Part]] = []
    for sequence in reading.sequences:
        for name, branch in modules_of(sequence, Branch):
            found += _inner_parts(name, branch.part)
    return found


def _inner_parts(name: str, part: Part) -> list[tuple[str, Part]]:
    if isinstance(part, Sum):
        return [each for inner in part.names for each in _inner_parts(f"{name}.{inner}", part.inner(inner))]
    return [(name, part)]


def watch_parts(reading: Reading, hooks: contextlib.ExitStack, see: Callable[[PartCall], None]) -> None:
    """Call `see` for every part after its branch has run."""
    for sequence in reading.sequences:
        for name, branch in modules_of(sequence, Branch):

            def after(
                module: Any, inputs: Any, output: Any, name: str = name, sequence: TokenSequence = sequence
            ) -> None:
                with reading.recomputing():
                    for call in part_calls(sequence, name, module, inputs, output):
                        see(call)

            hooks.callback(branch.register_forward_hook(after).remove)


def part_calls(
    sequence: TokenSequence, name: str, branch: Branch, inputs: tuple[Tensor, Context], output: tuple[Tensor, Context]
) -> Iterator[PartCall]:
    """Yield the calls of a branch's part, or of the parts of a sum."""
    (x, ctx), (_, after) = inputs, output
    slot = None if ctx.state is None else ctx.state.slots.get(branch.path + ctx.turn)
    ctx = dataclasses.replace(ctx, values=after.values)  # which the part itself may have published
    yield from _expanded(PartCall(sequence, name + ctx.turn, branch.part, branch.norm(x), ctx, slot))


def _expanded(call: PartCall) -> Iterator[PartCall]:
    part = call.part
    if not isinstance(part, Sum):
        yield call
        return
    slots: Mapping[str, object] = call.slot.slots if isinstance(call.slot, SumSlot) else {}
    for name in part.names:
        x = part.part_input(name, call.x)
        inner = PartCall(call.sequence, f"{call.name}.{name}", part.inner(name), x, call.ctx, slots.get(name))
        yield from _expanded(inner)


def watch_blocks(reading: Reading, hooks: contextlib.ExitStack, see: Callable[[str, Tensor], None]) -> None:
    """Call `see` with the stream that enters the layers of the predicted sequence, and with each layer's output."""
    sequence = reading.main

    def entered(_module: object, _inputs: object, output: tuple[Tensor, Context]) -> None:
        with reading.recomputing():
            see("embedding", output[0])

    hooks.callback(sequence.tower.position.register_forward_hook(entered).remove)
    for name, block in modules_of(sequence, Block):

        def after(_module: Any, inputs: Any, output: Any, name: str = name) -> None:
            with reading.recomputing():
                see(name + inputs[1].turn, output[0])

        hooks.callback(block.register_forward_hook(after).remove)
