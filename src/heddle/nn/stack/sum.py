"""Parallel parts: several parts on one input, their outputs summed (GPT-J, Wang & Komatsuzaki 2021; GPT-NeoX 2022)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from heddle.core import ConfigError, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Part, PartConfig, Place, Stateful
from heddle.nn.layers import NormConfig
from heddle.nn.state import Slot


@part("sum")
class SumConfig(PartConfig):
    """Parallel attention and feed-forward, say: the sum of several parts of one input.

    parts: the parts whose outputs are added.
    norms: one norm before each part (GPT-NeoX); (): none.
    """

    slot = "sum"

    parts: tuple[PartConfig, ...]
    norms: tuple[NormConfig, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise ConfigError("parts", want="at least two", got=len(self.parts))
        if self.norms and len(self.norms) != len(self.parts):
            raise ConfigError("norms", want=f"none, or one for each of {len(self.parts)} parts", got=len(self.norms))

    def build(self, width: int, place: Place) -> "Sum":
        return Sum(width, self, place)


@dataclass(frozen=True)
class SumSlot:
    """The slots of several parts, by name."""

    slots: Mapping[str, Slot]

    def map(self, change: Callable[[Tensor], Tensor]) -> "SumSlot":
        """Return the slot with every tensor changed."""
        return SumSlot({name: slot.map(change) for name, slot in self.slots.items()})

    def resize(self, capacity: int) -> "SumSlot":
        """Return the slot with capacity for this many tokens a row."""
        return SumSlot({name: slot.resize(capacity) for name, slot in self.slots.items()})

    def can_rewind(self, tokens: int) -> bool:
        """Tell whether this many of the latest tokens can be removed."""
        return all(slot.can_rewind(tokens) for slot in self.slots.values())


class Sum(Stateful):
    """part(norm(x)) + part(norm(x)) + ..."""

    def __init__(self, width: int, config: SumConfig, place: Place) -> None:
        super().__init__()
        self.names: list[str] = []
        for inner in config.parts:
            used = sum(name.rstrip("0123456789_") == inner.slot for name in self.names)
            name = f"{inner.slot}_{used + 1}" if used else inner.slot
            built = inner.build(width, place.child(name))
            built.slot = inner.slot
            self.names.append(name)
            self.add_module(name, built)
        self.normed = bool(config.norms)
        for name, norm in zip(self.names, config.norms, strict=False):
            self.add_module(f"{name}_norm", norm.build(width))

    def inner(self, name: str) -> Part:
        """Return a part by its name."""
        found = self.get_submodule(name)
        assert isinstance(found, Part)
        return found

    def part_input(self, name: str, x: Stream) -> Stream:
        """Return the input of a part, normed if there are norms."""
        return self.get_submodule(f"{name}_norm")(x) if self.normed else x

    def forward(self, x: Stream, ctx: Context) -> Stream:
        y: Stream = self.inner(self.names[0])(self.part_input(self.names[0], x), ctx)
        for name in self.names[1:]:
            y = y + self.inner(name)(self.part_input(name, x), ctx)
        return y

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, SumSlot]:
        """Continue each part from its own slot."""
        before = slot.slots if isinstance(slot, SumSlot) else {}
        after: dict[str, Slot] = {}
        outputs: list[Stream] = []
        for name in self.names:
            inner, part_input = self.inner(name), self.part_input(name, x)
            if isinstance(inner, Stateful):
                y, new_slot = inner.step(part_input, ctx, before.get(name))
                assert isinstance(new_slot, Slot)
                after[name] = new_slot
            else:
                y = inner(part_input, ctx)
            outputs.append(y)
        total = outputs[0]
        for y in outputs[1:]:
            total = total + y
        return total, SumSlot(after)
