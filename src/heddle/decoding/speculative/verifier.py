"""Tracks: rows that a model has read, some of whose latest tokens may be taken back."""

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

AHEAD = 256  # tokens that there is room for at first beyond those that were read; then it doubles


class BlockDecoder(ABC):
    """A model and its rows. What it reads stays open until `keep` says how much of it counts."""

    def __init__(self, model: AutoregressiveModel, state: State, most: int) -> None:
        self.model, self.most = model, most
        self.lengths: list[int] = state.lengths.tolist()  # that count
        self.open: list[list[int]] = [[] for _ in self.lengths]

    @abstractmethod
    def read(self, rows: Sequence[Sequence[int]]) -> Stream:
        """Read more ids, as many in each row as it has (none, too, but not in all); return their vectors, padded.

        They are to be used before the next reading.
        """

    @abstractmethod
    def keep(self, counts: Sequence[int]) -> None:
        """Let the first few of each row's open tokens count, and take the others back."""

    @abstractmethod
    def select(self, rows: Sequence[int]) -> None:
        """Go on with some rows alone."""

    @abstractmethod
    def close(self) -> None:
        """Leave what may serve others."""

    def opened(self, rows: Sequence[Sequence[int]]) -> int:
        """Note what is read, and return how far the longest row reaches with it."""
        self.open = [[*before, *row] for before, row in zip(self.open, rows, strict=True)]
        return max(length + len(row) for length, row in zip(self.lengths, self.open, strict=True))

    def counted(self, counts: Sequence[int]) -> None:
        """Note what counts; nothing is open after it."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self.open = [[] for _ in self.lengths]


def block_decoder(
    model: AutoregressiveModel, state: State, most: int, widths: tuple[int, ...], back: int, kind: CaptureMode | None
) -> BlockDecoder:
    """Return a track on which so many ids a row are read at once, of which some may be taken back.

    Where it is wanted and the state can be rewound so far, the reading is recorded.
    """
    if kind is None or not state.can_rewind(back):
        return DynamicBlockDecoder(model, state, most)
    return StaticBlockDecoder(model, state, most, widths, kind)


@final
class DynamicBlockDecoder(BlockDecoder):
    """A track on a state that grows with its rows.

    A cache takes tokens back by forgetting that they are there. Hidden vectors cannot: from those before, what counts
    is read once more, at once.
    """

    def __init__(self, model: AutoregressiveModel, state: State, most: int) -> None:
        super().__init__(model, state, most)
        self.state = self.before = state

    def read(self, rows: Sequence[Sequence[int]]) -> Stream:
        ids, new = pad_rows(rows, device_of(self.model))
        state = with_capacity(self.model, self.state, self.opened(rows), self.most)
        vectors, self.state = self.model.step(ids, state, new=new)
        return vectors

    def keep(self, counts: Sequence[int]) -> None:
        excess = max(len(row) - count for row, count in zip(self.open, counts, strict=True))
        if excess and self.state.can_rewind(excess):
            lengths = self.state.lengths.new_tensor([n + count for n, count in zip(self.lengths, counts, strict=True)])
            self.state = self.state.rewind(lengths)
        elif excess:
            kept, self.state = [row[:count] for row, count in zip(self.open, counts, strict=True)], self.before
            self.open = [[] for _ in kept]
            if any(kept):
                self.read(kept)
        self.counted(counts)
        self.before = self.state

    def select(self, rows: Sequence[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self.state = self.before = self.state.select(rows)
        self.open = [[] for _ in rows]

    def close(self) -> None:
        return


# --- on a state of fixed size -----------------------------------------------------------------------------------------


def bite(model: AutoregressiveModel, ids: Ids, new: Int[Tensor, " batch"], state: State) -> Stream:
    """Read the first `new` ids of each row and write over the state; return the vectors of all."""
    vectors, later = model.step(ids, state, new=new)
    state.update_from(later)
    return vectors


@final
class StaticBlocks(StaticState):
    """A state of fixed size, and the recorded reading of some numbers of ids at once."""

    def __init__(self, like: State, room: int, widths: tuple[int, ...], kind: CaptureMode, key: object) -> None:
        device, rows = like.lengths.device, len(like.lengths)
        state = like.empty_like(room)
        self.new: Int[Tensor, " batch"] = torch.zeros(rows, dtype=torch.long, device=device)
        self.ids = {width: torch.zeros(rows, width, dtype=torch.long, device=device) for width in widths}
        self.by_width = {width: CapturedGraph(bite, (ids, self.new, state), kind) for width, ids in self.ids.items()}
        super().__init__(state, list(self.by_width.values()), key)

    def begin(self, model: AutoregressiveModel, state: State) -> None:
        self.new.zero_()  # what was read last might reach beyond the room, should all be recorded anew
        super().begin(model, state)

    def read(self, model: AutoregressiveModel, rows: Sequence[Sequence[int]]) -> Stream:
        """Read some ids of each row, by the least width that takes all; their vectors last until the next."""
        longest = max(len(row) for row in rows)
        width = min(width for width in self.ids if width >= longest)
        self.ids[width].copy_(torch.tensor([[*row, *(0,) * (width - len(row))] for row in rows]))
        self.new.copy_(torch.tensor([len(row) for row in rows]))
        return self.by_width[width].run(model)[:, :longest]


@final
class StaticBlockDecoder(BlockDecoder):
    """A track on a state of fixed size that can be rewound. Rows that are left out stay in it, and read nothing."""

    def __init__(
        self, model: AutoregressiveModel, state: State, most: int, widths: tuple[int, ...], kind: CaptureMode
    ) -> None:
        super().__init__(model, state, most)
        self.widths, self.kind = widths, kind
        self.all, self.rows = list(self.lengths), list(range(len(self.lengths)))  # the places of those that go on
        with torch.inference_mode(False):  # weights that move must still serve in training
            fuse_linears(model)
        self.bites = self._on(state, max(self.lengths) + AHEAD)

    def _on(self, state: State, length: int) -> StaticBlocks:
        """Return what goes on from a state, with room for a length or all that is wanted."""
        room = bucketed_capacity(self.model, min(length, self.most))
        self.model.decoder_tower.position.reserve(room)
        key = (StaticBlocks, self.kind, self.widths, state.layout(room))
        found = acquire(self.model, key, lambda key: StaticBlocks(state, room, self.widths, self.kind, key))
        found.begin(self.model, state)
        return found

    def read(self, rows: Sequence[Sequence[int]]) -> Stream:
        self._reach(self.opened(rows))
        spread: list[Sequence[int]] = [[] for _ in self.all]
        for place, row in zip(self.rows, rows, strict=True):
            spread[place] = row
        vectors = self.bites.read(self.model, spread)
        return vectors if len(self.rows) == len(self.all) else vectors[self.rows]

    def _reach(self, length: int) -> None:
        """Make room for a length; a row that fills its room has lost count of itself until the next `keep`."""
        room = self.bites.state.capacity
        if length < room or room == bucketed_capacity(self.model, self.most):
            return
        old, self.bites = self.bites, self._on(self.bites.state, max(length + 1, 2 * room))
        release(self.model, old)

    def keep(self, counts: Sequence[int]) -> None:
        self.counted(counts)
        for place, length in zip(self.rows, self.lengths, strict=True):
            self.all[place] = length
        self.bites.state.lengths.copy_(torch.tensor(self.all))

    def select(self, rows: Sequence[int]) -> None:
        self.lengths, self.rows = [self.lengths[row] for row in rows], [self.rows[row] for row in rows]
        self.open = [[] for _ in rows]

    def close(self) -> None:
        release(self.model, self.bites)
