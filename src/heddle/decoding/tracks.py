"""Tracks: rows that a model has read, some of whose latest tokens may be taken back."""

from collections.abc import Sequence
from typing import final

from heddle.core.shapes import Stream
from heddle.decoding.opening import with_room
from heddle.decoding.reach import device_of, padded
from heddle.models import Predictor
from heddle.nn import State


@final
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
        self.open = [[*before, *row] for before, row in zip(self.open, rows, strict=True)]
        reached = max(length + len(row) for length, row in zip(self.lengths, self.open, strict=True))
        vectors, self.state = self.model.step(ids, with_room(self.model, self.state, reached, self.most), new=new)
        return vectors

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
