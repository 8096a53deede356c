"""Recurrence: one vector carried from step to step (LSTM, Hochreiter & Schmidhuber 1997; GRU, Cho et al. 2014)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

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


class Recurrence(Remembering, ABC):
    """What LSTM and GRU share: weights, packed documents, unequal rows, the carried slot."""

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
    def run(self, x: Tensor | PackedSequence, start: Vectors) -> tuple[Tensor, Vectors]:
        """Run over time from a start; return every step's output and the last vectors."""

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.step(x, ctx, None)[0]

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, Hidden]:
        """Go on from the carried vectors; documents after a row's first begin anew."""
        start = slot.vectors if isinstance(slot, Hidden) else self.zeros(x, x.shape[0])
        if ctx.documents is None and ctx.new is None:
            y, last = self.run(x, start)
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
        count = len(pieces.lengths)
        begin = tuple(z.index_copy(0, pieces.first, s) for z, s in zip(self.zeros(x, count), start, strict=True))
        padded = x.new_zeros(count, int(pieces.lengths.max()), x.shape[-1])
        padded = padded.index_put((pieces.piece, pieces.offset), x[pieces.real])
        packed = pack_padded_sequence(padded, pieces.lengths, batch_first=True, enforce_sorted=False)
        data, last = self.run(packed, begin)
        outputs, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True)
        y = x.new_zeros(*x.shape[:2], self.hidden).masked_scatter(
            pieces.real[..., None], outputs[pieces.piece, pieces.offset]
        )
        return y, tuple(v[pieces.last] for v in last)

    def weights(self, dtype: torch.dtype) -> list[Tensor]:
        """Return the weights in the order and dtype that the kernels want."""
        all_four = (self.input_weight, self.recurrent_weight, self.input_bias, self.recurrent_bias)
        return [w.to(dtype) for w in all_four]


@dataclass(frozen=True)
class Pieces:
    """Rows cut into stretches that are run apart: one per document, or one per row without its padding."""

    lengths: Int[Tensor, " pieces"]  # on the CPU, as packing wants them
    real: Tensor  # [batch, length] true where a token belongs to a piece
    piece: Int[Tensor, " tokens"]  # which piece each real token is in
    offset: Int[Tensor, " tokens"]  # and where
    first: Int[Tensor, " batch"]  # the first piece of each row
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
    begin_step = torch.where(begins, steps, 0).cummax(dim=1).values
    piece = number[real]
    lengths = torch.bincount(piece).cpu()
    return Pieces(lengths, real, piece, (steps - begin_step)[real], number[:, 0], number[:, -1])


def _unpack(x: Tensor | PackedSequence, start: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Return data, batch sizes (None when not packed) and the start in the order of the data's rows."""
    if isinstance(x, PackedSequence):
        assert x.sorted_indices is not None
        return x.data, x.batch_sizes, [s[x.sorted_indices][None] for s in start]
    return x, None, [s[None] for s in start]


def _restore(x: Tensor | PackedSequence, last: Sequence[Tensor]) -> Vectors:
    """Undo the sorting of packed rows, and drop the layer dimension."""
    if isinstance(x, PackedSequence):
        assert x.unsorted_indices is not None
        return tuple(v[0][x.unsorted_indices] for v in last)
    return tuple(v[0] for v in last)


class LSTM(Recurrence):
    """cell = forget * cell + input * tanh(...); output * tanh(cell)."""

    gates = 4
    carried = 2

    def run(self, x: Tensor | PackedSequence, start: Vectors) -> tuple[Tensor, Vectors]:
        data, sizes, begin = _unpack(x, start)
        weights = self.weights(data.dtype)
        if sizes is None:
            y, *last = torch.lstm(data, begin, weights, True, 1, 0.0, self.training, False, True)
        else:
            y, *last = torch.lstm(data, sizes, begin, weights, True, 1, 0.0, self.training, False)
        return y, _restore(x, last)


class GRU(Recurrence):
    """hidden = update * hidden + (1 - update) * tanh(...reset...)."""

    gates = 3
    carried = 1

    def run(self, x: Tensor | PackedSequence, start: Vectors) -> tuple[Tensor, Vectors]:
        data, sizes, begin = _unpack(x, start)
        weights = self.weights(data.dtype)
        if sizes is None:
            y, last = torch.gru(data, begin[0], weights, True, 1, 0.0, self.training, False, True)
        else:
            y, last = torch.gru(data, sizes, begin[0], weights, True, 1, 0.0, self.training, False)
        return y, _restore(x, [last])
