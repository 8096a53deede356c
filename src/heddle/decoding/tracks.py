"""Tracks: rows that a model has read, some of whose latest tokens may be taken back."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core.shapes import Ids, Stream
from heddle.decoding.opening import with_room
from heddle.decoding.reach import device_of, padded, writer_of
from heddle.decoding.recorded import Act, Fixed, Kind, borrow, give_back, room_of
from heddle.models import Predictor
from heddle.nn import State, lay_together

AHEAD = 256  # tokens that there is room for at first beyond those that were read; then it doubles


def track_of(model: Predictor, state: State, most: int, widths: tuple[int, ...], kind: Kind | None) -> "Track":
    """Return a track on which mostly so many ids a row are read at once: recorded, where the state can be rewound."""
    if kind is None or not state.rewinds(max(widths)):
        return Track(model, state, most)
    return FixedTrack(model, state, most, widths, kind)


class Track:
    """A model and the state of its rows. What it reads stays open until `keep` says how much of it counts.

    A cache takes tokens back by forgetting that they are there. Hidden vectors cannot: from those before, what counts
    is read once more, at once.
    """

    def __init__(self, model: Predictor, state: State, most: int) -> None:
        self.model, self.state, self.most = model, state, most
        self.lengths: list[int] = state.lengths.tolist()  # that count
        self.before = state
        self.open: list[list[int]] = [[] for _ in self.lengths]

    def read(self, rows: Sequence[Sequence[int]]) -> Stream:
        """Read more ids, as many in each row as it has (none, too, but not in all); return their vectors, padded."""
        ids, new = padded(rows, device_of(self.model))
        reached = self._opened(rows)
        vectors, self.state = self.model.step(ids, with_room(self.model, self.state, reached, self.most), new=new)
        return vectors

    def _opened(self, rows: Sequence[Sequence[int]]) -> int:
        """Note what is read, and return how far the longest row reaches with it."""
        self.open = [[*before, *row] for before, row in zip(self.open, rows, strict=True)]
        return max(length + len(row) for length, row in zip(self.lengths, self.open, strict=True))

    def keep(self, counts: Sequence[int]) -> None:
        """Let the first few of each row's open tokens count, and take the others back."""
        excess = max(len(row) - count for row, count in zip(self.open, counts, strict=True))
        if excess and self.state.rewinds(excess):
            lengths = self.state.lengths.new_tensor([n + count for n, count in zip(self.lengths, counts, strict=True)])
            self.state = self.state.rewind(lengths)
        elif excess:
            kept, self.state = [row[:count] for row, count in zip(self.open, counts, strict=True)], self.before
            self.open = [[] for _ in kept]
            if any(kept):
                self.read(kept)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self.before, self.open = self.state, [[] for _ in self.lengths]

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some rows alone."""
        self.lengths = [self.lengths[row] for row in rows]
        self.state = self.before = self.state.select(rows)
        self.open = [[] for _ in rows]

    def close(self) -> None:
        """Leave what may serve others."""


# --- on a state of fixed size -----------------------------------------------------------------------------------------


def stretch(model: Predictor, ids: Ids, new: Int[Tensor, " batch"], state: State) -> Stream:
    """Read the first `new` ids of each row and write over the state; return the vectors of all."""
    vectors, later = model.step(ids, state, new=new)
    state.take(later)
    return vectors


class Stretches(Fixed):
    """A state of fixed size, and the recorded reading of stretches of some widths."""

    def __init__(self, like: State, room: int, widths: tuple[int, ...], kind: Kind, key: object) -> None:
        device, rows = like.lengths.device, len(like.lengths)
        state = like.blank(room)
        self.new: Int[Tensor, " batch"] = torch.zeros(rows, dtype=torch.long, device=device)
        self.ids = {width: torch.zeros(rows, width, dtype=torch.long, device=device) for width in sorted(widths)}
        self.by_width = {width: Act(stretch, (ids, self.new, state), kind) for width, ids in self.ids.items()}
        super().__init__(state, list(self.by_width.values()), key)

    def read(self, model: Predictor, rows: Sequence[Sequence[int]]) -> Stream:
        """Read a stretch of each row, by the least width that takes all; its vectors last until the next."""
        longest = max(len(row) for row in rows)
        width = next(width for width in self.ids if width >= longest)
        self.ids[width].copy_(torch.tensor([[*row, *(0,) * (width - len(row))] for row in rows]))
        self.new.copy_(torch.tensor([len(row) for row in rows]))
        return self.by_width[width].run(model)

    @property
    def widest(self) -> int:
        """Return the most ids a row that are read at once."""
        return max(self.ids)


class FixedTrack(Track):
    """A track on a state of fixed size that can be rewound. Rows that are left out stay in it, and read nothing."""

    def __init__(self, model: Predictor, state: State, most: int, widths: tuple[int, ...], kind: Kind) -> None:
        super().__init__(model, state, most)
        self.widths, self.kind = widths, kind
        self.all, self.rows = list(self.lengths), list(range(len(self.lengths)))  # the places of those that go on
        with torch.inference_mode(False):  # weights that move must still serve in training
            lay_together(model)
        self.stretches = self._on(state, max(self.lengths) + AHEAD)
        self.state = self.before = self.stretches.state

    def _on(self, state: State, length: int) -> Stretches:
        """Return what goes on from a state, with room for a length or all that is wanted."""
        room = room_of(self.model, min(length, self.most))
        writer_of(self.model).position.reach(room)
        key = (Stretches, self.kind, self.widths, state.shape(room))
        found = borrow(self.model, key, lambda key: Stretches(state, room, self.widths, self.kind, key))
        found.begin(self.model, state)
        return found

    def read(self, rows: Sequence[Sequence[int]]) -> Stream:
        self._reach(self._opened(rows))
        spread: list[Sequence[int]] = [[] for _ in self.all]
        for place, row in zip(self.rows, rows, strict=True):
            spread[place] = row
        longest, widest = max(len(row) for row in rows), self.stretches.widest
        if longest <= widest:
            vectors = self.stretches.read(self.model, spread)
        else:
            pieces = [[row[at : at + widest] for row in spread] for at in range(0, longest, widest)]
            each = [self.stretches.read(self.model, piece).clone() for piece in pieces]
            vectors = torch.cat(each, dim=1)  # all but the last are of the widest
        vectors = vectors[:, :longest]
        return vectors if len(self.rows) == len(self.all) else vectors[self.rows]

    def _reach(self, length: int) -> None:
        """Make room for a length; a row that fills its room has lost count of itself until the next `keep`."""
        room = self.state.room
        if length < room or room == room_of(self.model, self.most):
            return
        old, self.stretches = self.stretches, self._on(self.state, max(length + 1, 2 * room))
        self.state = self.before = self.stretches.state
        old.rest()

    def keep(self, counts: Sequence[int]) -> None:
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        for place, length in zip(self.rows, self.lengths, strict=True):
            self.all[place] = length
        self.state.lengths.copy_(torch.tensor(self.all))
        self.open = [[] for _ in self.lengths]

    def select(self, rows: Sequence[int]) -> None:
        self.lengths, self.rows = [self.lengths[row] for row in rows], [self.rows[row] for row in rows]
        self.open = [[] for _ in rows]

    def close(self) -> None:
        give_back(self.model, self.stretches)
