"""Decoding state: KV caches and recurrent hidden states of all parts, under one protocol."""

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
    """The state of one part; the first dimension of every tensor is the batch."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Slot":
        """Return the slot with a function applied to every tensor."""

    def resize(self, capacity: int) -> "Slot":
        """Return the slot with capacity for this many tokens per row, no fewer than it has seen."""

    def can_rewind(self, tokens: int) -> bool:
        """Tell whether this many of the latest tokens can be removed by reducing the lengths."""


@dataclass(frozen=True)
class HiddenState:
    """Hidden state of a recurrent part (an LSTM has two vectors, a GRU one); differentiable."""

    vectors: tuple[Float[Tensor, "batch _"], ...]

    def map(self, function: Callable[[Tensor], Tensor]) -> "HiddenState":
        """Return the slot with a function applied to every tensor."""
        return type(self)(tuple(function(v) for v in self.vectors))

    def resize(self, capacity: int) -> "HiddenState":
        """Return the slot itself: its size does not depend on the length."""
        return self

    def can_rewind(self, tokens: int) -> bool:
        """Tell that nothing can be rewound: earlier vectors are not stored."""
        return tokens == 0


@dataclass(frozen=True)
class CrossKVCache:
    """KV cache of cross-attention: keys and values of the encoder's memory, projected once."""

    keys: Float[Tensor, "batch heads source head_width"]
    values: Float[Tensor, "batch heads source head_width"]

    def map(self, function: Callable[[Tensor], Tensor]) -> "CrossKVCache":
        """Return the slot with a function applied to every tensor."""
        return type(self)(function(self.keys), function(self.values))

    def resize(self, capacity: int) -> "CrossKVCache":
        """Return the slot itself: the source does not grow."""
        return self

    def can_rewind(self, tokens: int) -> bool:
        """Tell that all can be rewound: the source does not change."""
        return True


@dataclass(frozen=True)
class Memory:
    """Encoder outputs: vectors for each decoder layer or for all, and a summary vector where there is one.

    A head that copies also has the source's ids, and the keys of its attention.
    """

    layers: tuple[Float[Tensor, "batch source memory"], ...]
    allowed: Bool[Tensor, "batch 1 1 source"] | None = None  # which positions are not padding; None: all
    summary: Float[Tensor, "batch summary"] | None = None
    ids: Int[Tensor, "batch source"] | None = None
    keys: Float[Tensor, "batch source inner"] | None = None

    def at(self, layer: int) -> Float[Tensor, "batch source memory"]:
        """Return the vectors that a decoder layer attends to."""
        return self.layers[layer] if len(self.layers) > 1 else self.layers[0]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Memory":
        """Return the memory with a function applied to every tensor."""
        more = [None if one is None else function(one) for one in (self.allowed, self.summary, self.ids, self.keys)]
        return Memory(tuple(function(layer) for layer in self.layers), *more)

    def with_mask(self) -> "Memory":
        """Return the memory with a mask, so that it can be padded."""
        if self.allowed is not None:
            return self
        batch, source, _ = self.layers[0].shape
        return dataclasses.replace(self, allowed=self.layers[0].new_ones(batch, 1, 1, source, dtype=torch.bool))


@dataclass(frozen=True)
class State:
    """All slots of a model by (path, turn), and how many tokens each row has seen."""

    lengths: Int[Tensor, " batch"]
    capacity: int  # the most tokens of a row, without padding
    slots: Mapping[str, Slot] = dataclasses.field(default_factory=dict)
    memory: Memory | None = None  # of the source, for a decoder
    # how KV caches store their numbers; torch.compile can trace a global name, but no default object
    cache: KVCacheConfig = dataclasses.field(default_factory=lambda: FULL)

    @classmethod
    def empty(cls, batch: int, capacity: int, device: torch.device | str = "cpu") -> "State":
        """Return a state without tokens; parts allocate their slots at their first step."""
        return cls(torch.zeros(batch, dtype=torch.long, device=device), capacity)

    def with_slot(self, key: str, slot: Slot) -> "State":
        """Return a state with one part's slot replaced."""
        return dataclasses.replace(self, slots={**self.slots, key: slot})

    def advance(self, new: Int[Tensor, " batch"] | int) -> "State":
        """Return a state with more tokens counted in each row."""
        return dataclasses.replace(self, lengths=self.lengths + new)

    def map(self, function: Callable[[Tensor], Tensor]) -> "State":
        """Return a state with a function applied to every tensor of every slot."""
        return dataclasses.replace(self, slots={k: s.map(function) for k, s in self.slots.items()})

    def select(self, rows: Int[Tensor, " chosen"] | Sequence[int]) -> "State":
        """Return a state of the chosen rows, in that order: for beam search and finished rows.

        A sequence of numbers that names all rows in order returns the state itself, not a copy.
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
        """Return a state with capacity for this many tokens per row, no fewer than any has seen."""
        slots = {key: slot.resize(capacity) for key, slot in self.slots.items()}
        return dataclasses.replace(self, capacity=capacity, slots=slots)

    @classmethod
    def join(cls, states: "Sequence[State]") -> "State":
        """Return one state with copies of the rows of several, of one model, each of at least one token."""
        capacity = max(state.capacity for state in states)
        resized = [state.resize(capacity) for state in states]
        slots = {key: _concatenate([state.slots[key] for state in resized]) for key in resized[0].slots}
        lengths = torch.cat([state.lengths for state in states])
        memories = [state.memory.with_mask() for state in states if state.memory is not None]
        memory = _concatenate(memories) if memories else None
        return dataclasses.replace(resized[0], lengths=lengths, slots=slots, memory=memory)

    def nbytes(self) -> int:
        """Count the bytes of the state."""
        tensors = [self.lengths]
        for slot in (*self.slots.values(), *(() if self.memory is None else (self.memory,))):
            tensors += tensors_of(slot)
        return sum(tensor.nbytes for tensor in tensors)

    def empty_like(self, capacity: int) -> "State":
        """Return a state with the same slots and this capacity in newly allocated memory."""

        def empty(tensor: Tensor) -> Tensor:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=self.lengths.device)

        resized = {key: slot.map(to_meta).resize(capacity).map(empty) for key, slot in self.slots.items()}
        memory = None if self.memory is None else self.memory.map(empty)
        return dataclasses.replace(self, lengths=empty(self.lengths), capacity=capacity, slots=resized, memory=memory)

    def layout(self, capacity: int) -> tuple[object, ...]:
        """Return shapes and dtypes at this capacity: states with equal layouts can be copied over one another."""
        resized = {key: tensors_of(slot.map(to_meta).resize(capacity)) for key, slot in self.slots.items()}
        memory = () if self.memory is None else tuple((t.shape, t.dtype) for t in tensors_of(self.memory))
        slots = tuple((key, *((t.shape, t.dtype) for t in tensors)) for key, tensors in resized.items())
        return (capacity, len(self.lengths), self.lengths.device, self.cache, slots, memory)

    def copy_from(self, other: "State") -> None:
        """Copy another state of the same rows and no larger capacity over this one, in place."""
        self.lengths.copy_(other.lengths)
        for key, slot in self.slots.items():
            _copy_tensors(slot, other.slots[key].resize(self.capacity))
        if self.memory is not None and other.memory is not None:
            _copy_tensors(self.memory, other.memory)

    def update_from(self, later: "State") -> None:
        """Copy the state after a step over this one, in place; a full row stays full, and its last place changes.

        So finished rows can run along with the others.
        """
        for key, slot in self.slots.items():
            _copy_tensors(slot, later.slots[key])
        self.lengths.copy_(later.lengths.clamp(max=self.capacity - 1))

    def can_rewind(self, tokens: int) -> bool:
        """Tell whether this many of the latest tokens can be rewound; recurrent parts keep their last vectors only."""
        return all(slot.can_rewind(tokens) for slot in self.slots.values())

    def rewind(self, lengths: Int[Tensor, " batch"]) -> "State":
        """Return a state whose rows have these lengths; check `can_rewind` first."""
        return dataclasses.replace(self, lengths=lengths)

    def detach(self) -> "State":
        """Detach from the graph: truncated BPTT (backpropagation through time)."""
        return self.map(Tensor.detach)

    def reset(self, fresh: Bool[Tensor, " batch"]) -> "State":
        """Clear the rows that start a new text."""

        def clear(tensor: Tensor) -> Tensor:
            return tensor.masked_fill(fresh.view(-1, *(1,) * (tensor.dim() - 1)), 0)

        return dataclasses.replace(self.map(clear), lengths=self.lengths.masked_fill(fresh, 0))

    def tensors(self) -> dict[str, Tensor]:
        """Return a state that is carried between batches as named tensors: hidden states only, no KV caches."""
        named = {"lengths": self.lengths}
        for key, slot in self.slots.items():
            if not isinstance(slot, HiddenState):
                raise ConfigError(
                    "rows.kind", f"only recurrent models carry state between batches; {key} has a KV cache"
                )
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


def tensors_of(slot: Mappable) -> list[Tensor]:
    """Return every tensor, in the order of `map`."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    slot.map(note)
    return found


def to_meta(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and dtype on the meta device."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _copy_tensors(over: Mappable, new: Mappable) -> None:
    """Copy every tensor over its counterpart, unless they are the same."""
    for own, other in zip(tensors_of(over), tensors_of(new), strict=True):
        if own is not other:
            own.copy_(other)


def _concatenate(several: Sequence[Mappable]) -> Mappable:
    """Return one with the rows of several; shorter tensors, such as keys of a short source, are padded with zeros."""
    joined = iter([_pad_and_concatenate(tensors) for tensors in zip(*map(tensors_of, several), strict=True)])
    return several[0].map(lambda _: next(joined))


def _pad_and_concatenate(tensors: Sequence[Tensor]) -> Tensor:
    sizes = [max(t.shape[axis] for t in tensors) for axis in range(1, tensors[0].dim())]
    padded = []
    for tensor in tensors:
        missing = [size - own for size, own in zip(sizes, tensor.shape[1:], strict=True)]
        padded.append(functional.pad(tensor, [n for short in reversed(missing) for n in (0, short)]))
    return torch.cat(padded)
