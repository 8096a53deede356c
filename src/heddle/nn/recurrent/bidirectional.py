"""Bidirectional RNN: one cell reads forwards, one backwards (Schuster & Paliwal 1997)."""

import dataclasses

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import ConfigError, UsageError, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, MixerConfig, Part, Place
from heddle.nn.recurrent.cells import LSTMConfig
from heddle.nn.recurrent.gates import CellGates, check_whole_rows
from heddle.nn.recurrent.recurrence import CellConfig, CellSizes, output_projection
from heddle.nn.recurrent.rnn_op import Inputs


@part("bidirectional")
class BidirectionalConfig(MixerConfig):
    """Bidirectional RNN, for encoders: the backward cell sees the tokens that a language model predicts.

    cell: the cell of each direction; by default each has half the width.
    """

    cell: CellConfig = LSTMConfig()

    def build(self, width: int, place: Place) -> "Bidirectional":
        if place.sight != "all":
            want = "all, because the backward cell sees the tokens that a language model predicts"
            raise ConfigError("sight", want=want, got=place.sight)
        if self.cell.hidden is None and width % 2:
            raise ConfigError("cell.hidden", want=f"a number, because the width of {width} is odd", got=None)
        return Bidirectional(width, width // 2 if self.cell.hidden is None else self.cell.hidden, self.cell)


class Bidirectional(Part):
    """output([forwards(x), backwards(x)])."""

    def __init__(self, width: int, hidden: int, cell: CellConfig) -> None:
        super().__init__()
        self.forwards, self.backwards = (cell.layer(CellSizes(width, hidden, hidden)) for _ in range(2))
        self.output = output_projection(2 * hidden, width)
        self.compilable = self.forwards.compilable

    def gate_values(self, x: Stream, ctx: Context, slot: object) -> tuple[CellGates, ...]:
        """Recompute the gates of both cells; those of the backward cell are in the order of the text."""
        check_whole_rows(ctx)
        forwards = [dataclasses.replace(one, name="forwards") for one in self.forwards.gate_values(x, ctx, None)]
        backwards = self.backwards.gate_values(x.flip(1), ctx, None)
        turned = [{name: value.flip(1) for name, value in one.values.items()} for one in backwards]
        pairs = zip(backwards, turned, strict=True)
        return (*forwards, *(dataclasses.replace(one, name="backwards", values=values) for one, values in pairs))

    def forward(self, x: Stream, ctx: Context) -> Stream:
        if ctx.state is not None:
            raise UsageError("a bidirectional RNN reads whole rows: it cannot continue from a state")
        order = reversed_order(x, ctx)
        reversed_documents = None if ctx.documents is None else ctx.documents.take_along_dim(order, dim=1)
        forward_outputs = self.forwards(x, ctx)
        backward_context = dataclasses.replace(ctx, documents=reversed_documents)
        backward_outputs = self.backwards(_gather_steps(x, order), backward_context)
        output: Tensor = self.output(torch.cat((forward_outputs, _gather_steps(backward_outputs, order)), dim=-1))
        return output


def reversed_order(x: Inputs, ctx: Context) -> Int[Tensor, "batch length"]:
    """Return the positions of each row from its last real token to its first; padding stays in place.

    The order is its own inverse.
    """
    steps = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    if ctx.lengths is None:
        return steps.flip(1)
    return torch.where(steps < ctx.lengths[:, None], ctx.lengths[:, None] - 1 - steps, steps)


def _gather_steps(x: Inputs, order: Int[Tensor, "batch length"]) -> Inputs:
    return x.take_along_dim(order[..., None], dim=1)
