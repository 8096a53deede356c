"""State: what a model remembers between steps, one protocol for key-value caches and hidden states."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from heddle.core import ConfigError
from heddle.nn.state.kv_cache import FullKVCacheConfig, KVCacheConfig

FULL = FullKVCacheConfig()


@runtime_checkable
class Slot(Protocol):
    """What one part remembers; the first dimension of every tensor is the batch."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Slot":
        """Return the slot with every tensor changed."""

    def resize(self, capacity: int) -> "Slot":
        """Return the slot with room for so many tokens a row, no fewer than it has seen."""

    def can_rewind(self, tokens: int) -> bool:
        """Tell whether so many of the latest tokens can be taken back by counting them out of the lengths."""


@dataclass(frozen=True)
class HiddenState:
    """The vectors of a recurrent part (an LSTM has two, a GRU one); differentiable."""

    vectors: tuple[Float[Tensor, "batch _"], ...]

    def map(self, function: Callable[[Tensor], Tensor]) -> "HiddenState":
        """Return the slot with every tensor changed."""
        return type(self)(tuple(function(v) for v in self.vectors))

    def resize(self, capacity: int) -> "HiddenState":
        """Return the slot as it is: any number of tokens fits in it."""
        return self

    def can_rewind(self, tokens: int) -> bool:
        """Tell that nothing can be taken back: what went into the vectors is not there by itself."""
        return tokens == 0


@dataclass(frozen=True)
class CrossKVCache:
    """Keys and values of an encoder's memory: projected once, then read at every step."""

    keys: Float[Tensor, "batch heads source head_width"]
    values: Float[Tensor, "batch heads source head_width"]

    def map(self, function: Callable[[Tensor], Tensor]) -> "CrossKVCache":
        """Return the slot with every tensor changed."""
        return type(self)(function(self.keys), function(self.values))

    def resize(self, capacity: int) -> "CrossKVCache":
        """Return the slot as it is: the source does not grow."""
        return self

    def can_rewind(self, tokens: int) -> bool:
        """Tell that all can be taken back: the source does not change."""
        return True


@dataclass(frozen=True)
class Memory:
    """What an encoder understood: its vectors, for each decoder layer or for all, and a summary where it has one."""

    layers: tuple[Float[Tensor, "batch source memory"], ...]
    allowed: Bool[Tensor, "batch 1 1 source"] | None = None  # which places are real; None: all
    summary: Float[Tensor, "batch summary"] | None = None

    def at(self, layer: int) -> Float[Tensor, "batch source memory"]:
        """Return what a decoder layer sees."""
        return self.layers[layer] if len(self.layers) > 1 else self.layers[0]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Memory":
        """Return the memory with every tensor changed."""
        allowed = None if self.allowed is None else function(self.allowed)
        summary = None if self.summary is None else function(self.summary)
        return Memory(tuple(function(layer) for layer in self.layers), allowed, summary)

    def with_mask(self) -> "Memory":
        """Return the memory with its real places marked, so that it may be padded."""
        if self.allowed is not None:
            return self
        batch, source, _ = self.layers[0].shape
        return dataclasses.replace(self, allowed=self.layers[0].new_ones(batch, 1, 1, source, dtype=torch.bool))


@dataclass(frozen=True)
class State:
    """All slots of a model by (path, turn), and how many tokens each row has seen."""

    lengths: Int[Tensor, " batch"]
    capacity: int  # the most tokens a row may reach; padding needs none
    slots: Mapping[str, Slot] = dataclasses.field(default_factory=dict)
    memory: Memory | None = None  # of the source, for a decoder
    # how attention keeps what it must remember; a compiler can follow a name, and not an object that is a default
    cache: KVCacheConfig = dataclasses.field(default_factory=lambda: FULL)

    @classmethod
    def empty(cls, batch: int, capacity: int, device: torch.device | str = "cpu") -> "State":
        """Start with nothing seen; parts make their slots at their first step."""
        return cls(torch.zeros(batch, dtype=torch.long, device=device), capacity)

    def with_slot(self, key: str, slot: Slot) -> "State":
        """Return a state in which one part remembers something new."""
        return dataclasses.replace(self, slots={**self.slots, key: slot})

    def advance(self, new: Int[Tensor, " batch"] | int) -> "State":
        """Return a state in which each row has seen more tokens."""
        return dataclasses.replace(self, lengths=self.lengths + new)

    def map(self, function: Callable[[Tensor], Tensor]) -> "State":
        """Return a state with every tensor of every slot changed."""
        return dataclasses.replace(self, slots={k: s.map(function) for k, s in self.slots.items()})

    def select(self, rows: Int[Tensor, " chosen"] | Sequence[int]) -> "State":
        """Return a state whose rows are the chosen ones, in that order: for beams and finished rows.

        Rows given as numbers, all of them in their order, cost nothing: the state itself comes back, not a copy.
        """
        if not isinstance(rows, Tensor):
            if list(rows) == list(range(len(self.lengths))):
                return self
            rows = torch.tensor(rows, device=self.lengths.device)

        def pick(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows)

        memory = None if self.memory is None else self.memory.map(pick)
        return dataclasses.replace(self.map(pick), lengths=pick(self.lengths), memory=memory)

    def resize(self, capacity: int) -> "State":
        """Return a state with room for so many tokens a row, no fewer than any has seen."""
        return dataclasses.replace(
            self, capacity=capacity, slots={k: s.resize(capacity) for k, s in self.slots.items()}
        )

    @classmethod
    def join(cls, states: "Sequence[State]") -> "State":
        """Return one state with the rows of several, copied, that have read a token or more with one model."""
        capacity = max(state.capacity for state in states)
        resized = [state.resize(capacity) for state in states]
        slots = {key: _concatenate([state.slots[key] for state in resized]) for key in resized[0].slots}
        lengths = torch.cat([state.lengths for state in states])
        memory = (
            None if resized[0].memory is None else _concatenate([s.memory.with_mask() for s in resized if s.memory])
        )
        return dataclasses.replace(resized[0], lengths=lengths, slots=slots, memory=memory)

    def nbytes(self) -> int:
        """Count the bytes that the state holds."""
        held = [self.lengths]
        for kept in (*self.slots.values(), *(() if self.memory is None else (self.memory,))):
            held += _tensors(kept)
        return sum(tensor.nbytes for tensor in held)

    def empty_like(self, capacity: int) -> "State":
        """Return a state made like this one, of memory of its own that is still to be filled, with some room."""

        def own(tensor: Tensor) -> Tensor:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=self.lengths.device)

        resized = {key: slot.map(_meta).resize(capacity).map(own) for key, slot in self.slots.items()}
        memory = None if self.memory is None else self.memory.map(own)
        return dataclasses.replace(self, lengths=own(self.lengths), capacity=capacity, slots=resized, memory=memory)

    def layout(self, capacity: int) -> tuple[object, ...]:
        """Return all that tells whether two states, each with some room, could be written over one another."""
        resized = {key: _tensors(slot.map(_meta).resize(capacity)) for key, slot in self.slots.items()}
        memory = () if self.memory is None else tuple((t.shape, t.dtype) for t in _tensors(self.memory))
        slots = tuple((key, *((t.shape, t.dtype) for t in tensors)) for key, tensors in resized.items())
        return (capacity, len(self.lengths), self.lengths.device, self.cache, slots, memory)

    def copy_from(self, other: "State") -> None:
        """Write another state, of no more room and of as many rows, over this one in place."""
        self.lengths.copy_(other.lengths)
        for key, slot in self.slots.items():
            _copy_tensors(slot, other.slots[key].resize(self.capacity))
        if self.memory is not None and other.memory is not None:
            _copy_tensors(self.memory, other.memory)

    def update_from(self, later: "State") -> None:
        """Write what came of a step over this state in place; a row that is full stays so, and its last place changes.

        Rows that have ended may so go on with the others, at no harm to them.
        """
        for key, slot in self.slots.items():
            _copy_tensors(slot, later.slots[key])
        self.lengths.copy_(later.lengths.clamp(max=self.capacity - 1))

    def can_rewind(self, tokens: int) -> bool:
        """Tell whether so many of the latest tokens can be taken back; recurrent parts have only their last vectors."""
        return all(slot.can_rewind(tokens) for slot in self.slots.values())

    def rewind(self, lengths: Int[Tensor, " batch"]) -> "State":
        """Return a state in which rows have seen no more than this; ask first whether it `rewinds` so far."""
        return dataclasses.replace(self, lengths=lengths)

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
            if not isinstance(slot, HiddenState):
                raise ConfigError("rows", want="recurrent mixers only, to carry a state from batch to batch", got=key)
            named |= {f"{key}/{i}": vector for i, vector in enumerate(slot.vectors)}
        return named

    @classmethod
    def from_tensors(cls, named: Mapping[str, Tensor]) -> "State":
        """Undo `tensors`."""
        slots: dict[str, dict[int, Tensor]] = {}
        for name in named.keys() - {"lengths"}:
            key, _, number = name.rpartition("/")
            slots.setdefault(key, {})[int(number)] = named[name]
        ordered = {key: tuple(slots[key][number] for number in sorted(slots[key])) for key in sorted(slots)}
        return cls(named["lengths"], 1, {key: HiddenState(vectors) for key, vectors in ordered.items()})


Mappable = TypeVar("Mappable", Slot, Memory)


def _tensors(kept: Mappable) -> list[Tensor]:
    """Return every tensor, in the order in which `map` meets them."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    kept.map(note)
    return found


def _meta(tensor: Tensor) -> Tensor:
    """Return a tensor's shape and type alone."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _copy_tensors(over: Mappable, new: Mappable) -> None:
    """Copy every tensor over its like, but for those that are the same."""
    for own, other in zip(_tensors(over), _tensors(new), strict=True):
        if own is not other:
            own.copy_(other)


def _concatenate(several: Sequence[Mappable]) -> Mappable:
    """Return one with the rows of several; what is shorter, as the keys of a short source, is filled up with zeros."""
    joined = iter([_pad_and_concatenate(tensors) for tensors in zip(*map(_tensors, several), strict=True)])
    return several[0].map(lambda _: next(joined))


def _pad_and_concatenate(tensors: Sequence[Tensor]) -> Tensor:
    sizes = [max(t.shape[axis] for t in tensors) for axis in range(1, tensors[0].dim())]
    padded = []
    for tensor in tensors:
        missing = [size - own for size, own in zip(sizes, tensor.shape[1:], strict=True)]
        padded.append(functional.pad(tensor, [n for short in reversed(missing) for n in (0, short)]))
    return torch.cat(padded)
