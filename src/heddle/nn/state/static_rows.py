"""Rows of a state of static size: allocate them, view some of them, and write one row in place.

Continuous batching keeps one state for all requests. A request that joins is written over one row; the others are not
copied. Which axis of a tensor counts tokens is seen from its shapes at two capacities, so that every part's slot works.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.nn.state.state import Memory, Slot, State, tensors_of, to_meta

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TokenAxes:
    """The axis that counts tokens, for every tensor of every slot; None: it holds a summary of all tokens so far."""

    by_slot: Mapping[str, tuple[int | None, ...]]

    @classmethod
    def of(cls, state: State) -> "TokenAxes":
        """Compare the shapes of a state's slots at its capacity and at one token more."""
        here, more = (slot_shapes(state, state.capacity + extra) for extra in (0, 1))
        return cls({key: tuple(map(_changed_axis, here[key], more[key])) for key in here})


def _changed_axis(one: Shape, other: Shape) -> int | None:
    return next((axis for axis, sizes in enumerate(zip(one, other, strict=True)) if sizes[0] != sizes[1]), None)


def slot_shapes(state: State, capacity: int) -> dict[str, list[Shape]]:
    """Return the shapes of the tensors of every slot at a capacity."""
    slots = state.slots.items()
    return {key: [tuple(t.shape) for t in tensors_of(slot.map(to_meta).resize(capacity))] for key, slot in slots}


def allocate_rows(like: State, rows: int, capacity: int) -> State:
    """Return a state of empty rows in newly allocated memory, with the slots of a state of one row.

    An empty row sees a whole source of zeros, so that its outputs are numbers.
    """

    def zeros(tensor: Tensor) -> Tensor:
        full = torch.ones if tensor.dtype is torch.bool else torch.zeros
        return full((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=like.lengths.device)

    slots = {key: slot.map(to_meta).resize(capacity).map(zeros) for key, slot in like.slots.items()}
    memory = None if like.memory is None else like.memory.with_mask().map(zeros)
    return dataclasses.replace(like, lengths=zeros(like.lengths), capacity=capacity, slots=slots, memory=memory)


def view_rows(state: State, rows: int, capacity: int, start: int = 0) -> State:
    """Return some rows of a state, with a smaller capacity, as a view: what is written there, is written here."""
    shapes, chosen = slot_shapes(state, capacity), slice(start, start + rows)
    slots: dict[str, Slot] = {}
    for key, slot in state.slots.items():
        sizes = iter(shapes[key])
        slots[key] = slot.map(lambda t, sizes=sizes: t[(chosen, *map(slice, next(sizes)[1:]))])  # type: ignore[misc]
    memory = None if state.memory is None else state.memory.map(lambda t: t[chosen])
    return dataclasses.replace(state, lengths=state.lengths[chosen], capacity=capacity, slots=slots, memory=memory)


def write_row(state: State, row: int, other: State, at: int = 0) -> None:
    """Copy one row of another state, of no larger capacity and source, over a row of this one, in place."""
    for key, slot in state.slots.items():
        for own, new in zip(tensors_of(slot), tensors_of(other.slots[key]), strict=True):
            _copy_common(own[row], new[at])
    if state.memory is not None and other.memory is not None:
        write_memory(state.memory, row, other.memory.with_mask(), at)
    state.lengths[row] = other.lengths[at]


def write_memory(memory: Memory, row: int, other: Memory, at: int = 0) -> None:
    """Copy the source of one row over that of another; positions beyond a shorter source are masked."""
    if memory.allowed is not None:
        memory.allowed[row] = False
    for own, new in zip(tensors_of(memory), tensors_of(other), strict=True):
        _copy_common(own[row], new[at])


def _copy_common(over: Tensor, new: Tensor) -> None:
    """Copy the part that both have, from the first place of every axis."""
    region = tuple(slice(min(sizes)) for sizes in zip(over.shape, new.shape, strict=True))
    over[region].copy_(new[region])


def summaries(state: State, axes: TokenAxes) -> list[Tensor]:
    """Return the tensors that a step overwrites: hidden states and ring buffers, which hold a summary of all tokens."""
    found = []
    for key, slot in state.slots.items():
        pairs = zip(tensors_of(slot), axes.by_slot[key], strict=True)
        found += [tensor for tensor, axis in pairs if axis is None]
    return found


# --- pieces of one row: what the prefix cache keeps -------------------------------------------------------------------


@dataclass(frozen=True)
class StatePiece:
    """What a row's state holds of the tokens from `start` to `stop`: their keys and values, and summaries at `stop`."""

    start: int
    stop: int
    tensors: Mapping[str, tuple[Tensor, ...]]

    @classmethod
    def copy_of(cls, state: State, axes: TokenAxes, start: int, stop: int) -> "StatePiece":
        """Copy a piece of a state of one row that has read exactly `stop` tokens."""
        copies = {key: tuple(t.clone() for t, _ in _spans(state, axes, key, start, stop)) for key in state.slots}
        return cls(start, stop, copies)

    @property
    def nbytes(self) -> int:
        """Count the bytes."""
        return sum(tensor.nbytes for tensors in self.tensors.values() for tensor in tensors)


def write_pieces(state: State, axes: TokenAxes, pieces: Sequence[StatePiece]) -> None:
    """Write consecutive pieces, the first from token 0 on, into a state of one row; it has then read their tokens."""
    for piece in pieces:
        for key in state.slots:
            found = _spans(state, axes, key, piece.start, piece.stop)
            for (own, by_token), new in zip(found, piece.tensors[key], strict=True):
                if by_token or piece is pieces[-1]:
                    _copy_common(own, new)
    state.lengths.fill_(pieces[-1].stop)


def _spans(state: State, axes: TokenAxes, key: str, start: int, stop: int) -> Iterator[tuple[Tensor, bool]]:
    """Yield each tensor of a slot: the tokens from `start` to `stop`, or all of it where no axis counts tokens."""
    for tensor, axis in zip(tensors_of(state.slots[key]), axes.by_slot[key], strict=True):
        yield (tensor, False) if axis is None else (tensor.narrow(axis, start, stop - start), True)
