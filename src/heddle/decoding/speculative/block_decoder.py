"""Block decoders of speculative decoding: read several tokens of each row at once, and roll back some of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core.shapes import Ids, Stream
from heddle.decoding.runtime import (
    CapturedGraph,
    CaptureMode,
    StaticState,
    acquire,
    bucketed_capacity,
    device_of,
    pad_rows,
    release,
    with_capacity,
)
from heddle.models.networks import AutoregressiveModel
from heddle.nn.base import fuse_linears
from heddle.nn.state import State

AHEAD = 256  # capacity for new tokens at first; it doubles when full


class BlockDecoder(ABC):
    """A model and its rows. Tokens that it reads stay pending until `keep` accepts some and rolls back the others."""

    def __init__(self, model: AutoregressiveModel, state: State, max_length: int) -> None:
        self.model, self.max_length = model, max_length
        self.lengths: list[int] = state.lengths.tolist()  # of accepted tokens
        self.pending: list[list[int]] = [[] for _ in self.lengths]

    @abstractmethod
    def read(self, rows: Sequence[Sequence[int]]) -> Stream:
        """Read more ids of each row (a row may have none, but not all rows); return their hidden states, padded.

        Use them before the next call.
        """

    @abstractmethod
    def keep(self, counts: Sequence[int]) -> None:
        """Accept the first few pending tokens of each row, and roll back the others."""

    @abstractmethod
    def select(self, rows: Sequence[int]) -> None:
        """Continue with some rows alone."""

    @abstractmethod
    def close(self) -> None:
        """Release what later generations can reuse."""

    def add_pending(self, rows: Sequence[Sequence[int]]) -> int:
        """Add ids to the pending ones, and return the length of the longest row with them."""
        self.pending = [[*before, *row] for before, row in zip(self.pending, rows, strict=True)]
        return max(length + len(row) for length, row in zip(self.lengths, self.pending, strict=True))

    def accept(self, counts: Sequence[int]) -> None:
        """Count accepted tokens; nothing is pending after it."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self.pending = [[] for _ in self.lengths]


def block_decoder(
    model: AutoregressiveModel,
    state: State,
    max_length: int,
    widths: tuple[int, ...],
    back: int,
    mode: CaptureMode | None,
) -> BlockDecoder:
    """Return a decoder that reads blocks of these widths and can roll back `back` tokens.

    It is static if a mode is given and the state can be rewound that far.
    """
    if mode is None or not state.can_rewind(back):
        return DynamicBlockDecoder(model, state, max_length)
    return StaticBlockDecoder(model, state, max_length, widths, mode)


@final
class DynamicBlockDecoder(BlockDecoder):
    """Decodes blocks eagerly, on a state that grows.

    A KV cache rolls back by its length alone. A recurrent state cannot: accepted tokens are read again from the state
    before the block.
    """

    def __init__(self, model: AutoregressiveModel, state: State, max_length: int) -> None:
        super().__init__(model, state, max_length)
        self.state = self.before = state

    def read(self, rows: Sequence[Sequence[int]]) -> Stream:
        ids, new = pad_rows(rows, device_of(self.model))
        state = with_capacity(self.model, self.state, self.add_pending(rows), self.max_length)
        vectors, self.state = self.model.step(ids, state, lengths=new)
        return vectors

    def keep(self, counts: Sequence[int]) -> None:
        excess = max(len(row) - count for row, count in zip(self.pending, counts, strict=True))
        if excess and self.state.can_rewind(excess):
            lengths = self.state.lengths.new_tensor([n + count for n, count in zip(self.lengths, counts, strict=True)])
            self.state = self.state.rewind(lengths)
        elif excess:
            kept, self.state = [row[:count] for row, count in zip(self.pending, counts, strict=True)], self.before
            self.pending = [[] for _ in kept]
            if any(kept):
                self.read(kept)
        self.accept(counts)
        self.before = self.state

    def select(self, rows: Sequence[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self.state = self.before = self.state.select(rows)
        self.pending = [[] for _ in rows]

    def close(self) -> None:
        return


# --- on a static state ------------------------------------------------------------------------------------------------


def decode_block(model: AutoregressiveModel, ids: Ids, new: Int[Tensor, " batch"], state: State) -> Stream:
    """Read the first `new` ids of each row, overwriting the state; return the hidden states of all."""
    vectors, later = model.step(ids, state, lengths=new)
    state.update_from(later)
    return vectors


@final
class StaticBlocks(StaticState):
    """A static state, and captured steps that read blocks of certain widths."""

    def __init__(self, like: State, capacity: int, widths: tuple[int, ...], mode: CaptureMode, key: object) -> None:
        device, rows = like.lengths.device, len(like.lengths)
        state = like.empty_like(capacity)
        self.new: Int[Tensor, " batch"] = torch.zeros(rows, dtype=torch.long, device=device)
        self.ids = {width: torch.zeros(rows, width, dtype=torch.long, device=device) for width in widths}
        self.by_width = {
            width: CapturedGraph(decode_block, (ids, self.new, state), mode) for width, ids in self.ids.items()
        }
        super().__init__(state, list(self.by_width.values()), key)

    def begin(self, model: AutoregressiveModel, state: State) -> None:
        self.new.zero_()  # the last block might exceed the capacity while the steps are captured again
        super().begin(model, state)

    def read(self, model: AutoregressiveModel, rows: Sequence[Sequence[int]]) -> Stream:
        """Read ids of each row in a block of the smallest sufficient width; the next call overwrites the result."""
        longest = max(len(row) for row in rows)
        width = min(width for width in self.ids if width >= longest)
        self.ids[width].copy_(torch.tensor([[*row, *(0,) * (width - len(row))] for row in rows]))
        self.new.copy_(torch.tensor([len(row) for row in rows]))
        return self.by_width[width].run(model)[:, :longest]


@final
class StaticBlockDecoder(BlockDecoder):
    """Decodes blocks with captured steps, on a static state that can be rewound. Rows left out stay there, idle."""

    def __init__(
        self, model: AutoregressiveModel, state: State, max_length: int, widths: tuple[int, ...], mode: CaptureMode
    ) -> None:
        super().__init__(model, state, max_length)
        self.widths, self.mode = widths, mode
        self.all, self.rows = list(self.lengths), list(range(len(self.lengths)))  # places of the active rows
        with torch.inference_mode(False):  # fused weights must still serve in training
            fuse_linears(model)
        self.static = self._start_from(state, max(self.lengths) + AHEAD)

    def _start_from(self, state: State, length: int) -> StaticBlocks:
        """Return static blocks that continue from a state, with capacity for a length within the maximum."""
        capacity = bucketed_capacity(self.model, min(length, self.max_length))
        self.model.decoder_tower.position.reserve(capacity)
        key = (StaticBlocks, self.mode, self.widths, state.layout(capacity))
        found = acquire(self.model, key, lambda key: StaticBlocks(state, capacity, self.widths, self.mode, key))
        found.begin(self.model, state)
        return found

    def read(self, rows: Sequence[Sequence[int]]) -> Stream:
        self._reserve(self.add_pending(rows))
        spread: list[Sequence[int]] = [[] for _ in self.all]
        for place, row in zip(self.rows, rows, strict=True):
            spread[place] = row
        vectors = self.static.read(self.model, spread)
        return vectors if len(self.rows) == len(self.all) else vectors[self.rows]

    def _reserve(self, length: int) -> None:
        """Make sure of capacity for a length; a full state does not count its own length until the next `keep`."""
        capacity = self.static.state.capacity
        if length < capacity or capacity == bucketed_capacity(self.model, self.max_length):
            return
        old, self.static = self.static, self._start_from(self.static.state, max(length + 1, 2 * capacity))
        release(self.model, old)

    def keep(self, counts: Sequence[int]) -> None:
        self.accept(counts)
        for place, length in zip(self.rows, self.lengths, strict=True):
            self.all[place] = length
        self.static.state.lengths.copy_(torch.tensor(self.all))

    def select(self, rows: Sequence[int]) -> None:
        self.lengths, self.rows = [self.lengths[row] for row in rows], [self.rows[row] for row in rows]
        self.pending = [[] for _ in rows]

    def close(self) -> None:
        release(self.model, self.static)
