"""Recurrence: one vector carried from step to step (LSTM, Hochreiter & Schmidhuber 1997; GRU, Cho et al. 2014)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.core import ConfigError, part
from heddle.core.shapes import Stream
from heddle.nn.part import Context, Linear, MixerConfig, Place, Remembering, Role, check_at_least_one
from heddle.nn.state import Hidden

Vectors = tuple[Tensor, ...]


class RecurrenceConfig(MixerConfig):
    """Any recurrent mixer: sees the past by carrying it."""


def _check(place: Place) -> None:
    if place.sight != "past":
        raise ConfigError("sight", want="past, for a recurrent part reads in one direction", got=place.sight)


@part("lstm")
class LSTMConfig(RecurrenceConfig):
    """Carry a cell behind input, forget and output gates."""

    hidden: int | None = None  # None: the width; another size is projected back to it

    def __post_init__(self) -> None:
        check_at_least_one(hidden=self.hidden)

    def build(self, width: int, place: Place) -> "LSTM":
        _check(place)
        return LSTM(width, width if self.hidden is None else self.hidden)


@part("gru")
class GRUConfig(RecurrenceConfig):
    """Carry one vector behind reset and update gates."""

    hidden: int | None = None

    def __post_init__(self) -> None:
        check_at_least_one(hidden=self.hidden)

    def build(self, width: int, place: Place) -> "GRU":
        _check(place)
        return GRU(width, width if self.hidden is None else self.hidden)


class Carrying(Remembering, ABC):
    """A part whose slot is `Hidden`: vectors that a bridge can begin and a stream can carry on."""

    @abstractmethod
    def carried_sizes(self) -> tuple[int, ...]:
        """Return the size of each vector that goes from step to step."""


class Recurrence(Carrying, ABC):
    """What LSTM and GRU share: weights, packed documents, unequal rows, the carried slot."""

    traceable = False  # torch.lstm and torch.gru become thousands of small products
    gates: ClassVar[int]
    carried: ClassVar[int]  # how many vectors go from step to step
    roles = {
        "input_weight": Role.INSIDE,
        "recurrent_weight": Role.RECURRENT,
        "input_bias": Role.BIAS,
        "recurrent_bias": Role.BIAS,
    }

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.input_weight = nn.Parameter(torch.empty(self.gates * hidden, width))
        self.recurrent_weight = nn.Parameter(torch.empty(self.gates * hidden, hidden))
        self.input_bias = nn.Parameter(torch.empty(self.gates * hidden))
        self.recurrent_bias = nn.Parameter(torch.empty(self.gates * hidden))  # the fast kernels want both
        self.output = nn.Identity() if hidden == width else Linear(hidden, width, role=Role.INTO_STREAM)

    @abstractmethod
    def run(self, x: Tensor, sizes: Tensor | None, start: Vectors) -> tuple[Tensor, Vectors]:
        """Run over time from a start; return every step's output and the last vectors.

        With sizes, x is tokens of many pieces, all first ones first: sizes says how many pieces have a first token, a
        second, and so on, and start holds the pieces from the longest to the shortest.
        """

    def carried_sizes(self) -> tuple[int, ...]:
        return (self.hidden,) * self.carried

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.step(x, ctx, None)[0]

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, Hidden]:
        """Go on from the carried vectors; documents after a row's first begin anew."""
        start = slot.vectors if isinstance(slot, Hidden) else self.zeros(x, x.shape[0])
        if ctx.documents is None and ctx.new is None:
            y, last = self.run(x, None, start)
        else:
            y, last = self.run_pieces(x, start, pieces_of(x, ctx))
        if ctx.new is not None:  # a row without new tokens stays as it was
            last = tuple(v.where(ctx.new[:, None] > 0, s) for v, s in zip(last, start, strict=True))
        return self.output(y), Hidden(last)

    def zeros(self, x: Tensor, rows: int) -> Vectors:
        """Return the vectors before the first step."""
        return tuple(x.new_zeros(rows, self.hidden) for _ in range(self.carried))

    def run_pieces(self, x: Stream, start: Vectors, pieces: "Pieces") -> tuple[Tensor, Vectors]:
        """Run each piece of each row as a sequence of its own, side by side."""
        zeros = self.zeros(x, pieces.count)
        begin = tuple(z.index_copy(0, pieces.first, s) for z, s in zip(zeros, start, strict=True))
        outputs, last = self.run(x.flatten(0, 1)[pieces.order], pieces.sizes, begin)
        y = x.new_zeros(x.shape[0] * x.shape[1], self.hidden).index_copy(0, pieces.order, outputs)
        return y.unflatten(0, x.shape[:2]), tuple(v[pieces.last] for v in last)

    def weights(self, dtype: torch.dtype) -> list[Tensor]:
        """Return the weights in the order and dtype that the kernels want."""
        all_four = (self.input_weight, self.recurrent_weight, self.input_bias, self.recurrent_bias)
        if not self.input_weight.is_cuda:
            return [w.to(dtype) for w in all_four]
        # cuDNN wants them side by side in memory, and copies them at every call when they are not
        beside = torch.cat([w.flatten() for w in all_four]).to(dtype)
        return [
            piece.view_as(w) for piece, w in zip(beside.split([w.numel() for w in all_four]), all_four, strict=True)
        ]


@dataclass(frozen=True)
class Pieces:
    """Rows cut into stretches that are run apart: one per document, or one per row without its padding."""

    count: int
    order: Int[Tensor, " tokens"]  # real tokens of the flattened batch as the kernels want them: all first ones first
    sizes: Int[Tensor, " longest"]  # how many pieces have a first token, a second, ...; on the CPU
    first: Int[Tensor, " batch"]  # the first piece of each row, pieces counted from the longest
    last: Int[Tensor, " batch"]


def pieces_of(x: Float[Tensor, "batch length width"], ctx: Context) -> Pieces:
    """Cut rows at document boundaries, or at the end of their real tokens."""
    batch, length, _ = x.shape
    steps = torch.arange(length, device=x.device).expand(batch, length)
    real = torch.ones_like(steps, dtype=torch.bool) if ctx.new is None else steps < ctx.new.clamp(min=1)[:, None]
    begins = steps == 0
    if ctx.documents is not None:
        begins[:, 1:] |= (ctx.documents[:, 1:] != ctx.documents[:, :-1]) & real[:, 1:]
    number = begins.flatten().cumsum(0).view(batch, length) - 1
    offset = steps - torch.where(begins, steps, 0).cummax(dim=1).values
    tokens = real.flatten().nonzero()[:, 0]
    piece, offset = number.flatten()[tokens], offset.flatten()[tokens]
    lengths = torch.bincount(piece)
    rank = lengths.argsort(descending=True, stable=True).argsort()
    order = tokens[(offset * len(lengths) + rank[piece]).argsort()]
    return Pieces(len(lengths), order, torch.bincount(offset).cpu(), rank[number[:, 0]], rank[number[:, -1]])


class LSTM(Recurrence):
    """cell = forget * cell + input * tanh(...); output * tanh(cell)."""

    gates = 4
    carried = 2

    def run(self, x: Tensor, sizes: Tensor | None, start: Vectors) -> tuple[Tensor, Vectors]:
        weights, begin = self.weights(x.dtype), [s[None] for s in start]
        if sizes is None:
            y, hidden, cell = torch.lstm(x, begin, weights, True, 1, 0.0, self.training, False, True)
        else:
            y, hidden, cell = torch.lstm(x, sizes, begin, weights, True, 1, 0.0, self.training, False)
        return y, (hidden[0], cell[0])


class GRU(Recurrence):
    """hidden = update * hidden + (1 - update) * tanh(...reset...)."""

    gates = 3
    carried = 1

    def run(self, x: Tensor, sizes: Tensor | None, start: Vectors) -> tuple[Tensor, Vectors]:
        weights, begin = self.weights(x.dtype), start[0][None]
        if sizes is None:
            y, hidden = torch.gru(x, begin, weights, True, 1, 0.0, self.training, False, True)
        else:
            y, hidden = torch.gru(x, sizes, begin, weights, True, 1, 0.0, self.training, False)
        return y, (hidden[0],)
