"""State: what a model remembers between steps, one protocol for key-value caches and hidden states."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from heddle.core import ConfigError


@runtime_checkable
class Slot(Protocol):
    """What one part remembers; the first dimension of every tensor is the batch."""

    def map(self, change: Callable[[Tensor], Tensor]) -> "Slot":
        """Return the slot with every tensor changed."""

    def grow(self, room: int) -> "Slot":
        """Return the slot with room for so many tokens a row."""


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of the tokens seen so far; written in place, so for decoding only.

    There is one place more than the room: the bin for padding, which no query ever meets.
    """

    keys: Float[Tensor, "batch heads places head_width"]
    values: Float[Tensor, "batch heads places head_width"]

    def map(self, change: Callable[[Tensor], Tensor]) -> "KeyValues":
        """Return the slot with every tensor changed."""
        return type(self)(change(self.keys), change(self.values))

    def grow(self, room: int) -> "KeyValues":
        """Return the slot with room for so many tokens a row."""
        return self.map(lambda t: functional.pad(t, (0, 0, 0, room + 1 - t.shape[2])))

    @classmethod
    def empty(cls, like: Tensor, room: int) -> "KeyValues":
        """Make room for some tokens, shaped as `like` but for its length."""
        batch, heads, _, head_width = like.shape
        return cls(*(like.new_zeros(batch, heads, room + 1, head_width) for _ in range(2)))

    def write(self, keys: Tensor, values: Tensor, steps: Int[Tensor, "batch new"]) -> None:
        """Put new keys and values at each row's own steps."""
        rows = torch.arange(keys.shape[0], device=keys.device)[:, None]
        self.keys[rows, :, steps] = keys.transpose(1, 2)
        self.values[rows, :, steps] = values.transpose(1, 2)


@dataclass(frozen=True)
class Hidden:
    """The vectors of a recurrent part (an LSTM has two, a GRU one); differentiable."""

    vectors: tuple[Float[Tensor, "batch _"], ...]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Hidden":
        """Return the slot with every tensor changed."""
        return type(self)(tuple(change(v) for v in self.vectors))

    def grow(self, room: int) -> "Hidden":
        """Return the slot as it is: any number of tokens fits in it."""
        return self


@dataclass(frozen=True)
class Recalled:
    """Keys and values of an encoder's memory: projected once, then read at every step."""

    keys: Float[Tensor, "batch heads source head_width"]
    values: Float[Tensor, "batch heads source head_width"]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Recalled":
        """Return the slot with every tensor changed."""
        return type(self)(change(self.keys), change(self.values))

    def grow(self, room: int) -> "Recalled":
        """Return the slot as it is: the source does not grow."""
        return self


@dataclass(frozen=True)
class Memory:
    """What an encoder understood: its vectors, for each decoder layer or for all, and a summary where it has one."""

    layers: tuple[Float[Tensor, "batch source memory"], ...]
    allowed: Bool[Tensor, "batch 1 1 source"] | None = None  # which places are real; None: all
    summary: Float[Tensor, "batch summary"] | None = None

    def at(self, layer: int) -> Float[Tensor, "batch source memory"]:
        """Return what a decoder layer sees."""
        return self.layers[layer] if len(self.layers) > 1 else self.layers[0]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Memory":
        """Return the memory with every tensor changed."""
        allowed = None if self.allowed is None else change(self.allowed)
        summary = None if self.summary is None else change(self.summary)
        return Memory(tuple(change(layer) for layer in self.layers), allowed, summary)


@dataclass(frozen=True)
class State:
    """All slots of a model by (path, turn), and how many tokens each row has seen."""

    lengths: Int[Tensor, " batch"]
    room: int  # the most tokens a row may reach; padding needs none
    slots: Mapping[str, Slot] = dataclasses.field(default_factory=dict)
    memory: Memory | None = None  # of the source, for a decoder

    @classmethod
    def empty(cls, batch: int, room: int, device: torch.device | str = "cpu") -> "State":
        """Start with nothing seen; parts make their slots at their first step."""
        return cls(torch.zeros(batch, dtype=torch.long, device=device), room)

    def with_slot(self, key: str, slot: Slot) -> "State":
        """Return a state in which one part remembers something new."""
        return dataclasses.replace(self, slots={**self.slots, key: slot})

    def advance(self, new: Int[Tensor, " batch"] | int) -> "State":
        """Return a state in which each row has seen more tokens."""
        return dataclasses.replace(self, lengths=self.lengths + new)

    def map(self, change: Callable[[Tensor], Tensor]) -> "State":
        """Return a state with every tensor of every slot changed."""
        return dataclasses.replace(self, slots={k: s.map(change) for k, s in self.slots.items()})

    def select(self, rows: Int[Tensor, " chosen"]) -> "State":
        """Return a state whose rows are the chosen ones, in that order: for beams and finished rows."""

        def pick(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows)

        memory = None if self.memory is None else self.memory.map(pick)
        return dataclasses.replace(self.map(pick), lengths=pick(self.lengths), memory=memory)

    def grow(self, room: int) -> "State":
        """Return a state with room for more tokens a row."""
        return dataclasses.replace(self, room=room, slots={k: s.grow(room) for k, s in self.slots.items()})

    def detach(self) -> "State":
        """Cut the gradient, for truncated backpropagation."""
        return self.map(Tensor.detach)

    def reset(self, fresh: Bool[Tensor, " batch"]) -> "State":
        """Forget everything in the rows that begin anew."""

        def clear(tensor: Tensor) -> Tensor:
            return tensor.masked_fill(fresh.view(-1, *(1,) * (tensor.dim() - 1)), 0)

        return dataclasses.replace(self.map(clear), lengths=self.lengths.masked_fill(fresh, 0))

    def tensors(self) -> dict[str, Tensor]:
        """Return a carried state as named tensors: hidden vectors only, for caches are not carried between batches."""
        named = {"lengths": self.lengths}
        for key, slot in self.slots.items():
            if not isinstance(slot, Hidden):
                raise ConfigError("rows", want="recurrent mixers only, to carry a state from batch to batch", got=key)
            named |= {f"{key}/{i}": vector for i, vector in enumerate(slot.vectors)}
        return named

    @classmethod
    def from_tensors(cls, named: Mapping[str, Tensor]) -> "State":
        """Undo `tensors`."""
        slots: dict[str, list[Tensor]] = {}
        for name in sorted(named.keys() - {"lengths"}):
            slots.setdefault(name.rpartition("/")[0], []).append(named[name])
        return cls(named["lengths"], 1, {key: Hidden(tuple(vectors)) for key, vectors in slots.items()})
