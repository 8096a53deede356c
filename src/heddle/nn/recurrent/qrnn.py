"""QRNN: gates from a convolution over time, and an elementwise recurrence by a parallel scan (Bradbury et al. 2016)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Positive, Share, part, within
from heddle.nn.base import Context, Role, upcast
from heddle.nn.recurrent.gates import CellGates, check_whole_rows, run_gates
from heddle.nn.recurrent.recurrence import (
    CellConfig,
    CellSizes,
    Outputs,
    Recurrent,
    document_starts,
    last_real,
    output_projection,
)
from heddle.nn.recurrent.rnn_op import Inputs, States
from heddle.nn.recurrent.scan import linear_scan
from heddle.nn.state import HiddenState


@part("qrnn")
class QRNNConfig(CellConfig):
    """QRNN with fo-pooling: forget and output gates that see only the last one or two inputs.

    hidden: width of the state; None: the stream's width.
    window: inputs that the gates see: 1 or 2.
    zoneout: rate in training at which a cell keeps its old value (Krueger et al. 2017).
    weight_drop: DropConnect on the convolution's matrix: its rate in training.
    """

    hidden: Positive | None = None
    window: Annotated[int, within("1 or 2", lambda window: window in (1, 2))] = 2
    zoneout: Share = 0.0
    weight_drop: Share = 0.0

    def layer(self, sizes: CellSizes) -> "QRNN":
        return QRNN(sizes, self)


class QRNN(Recurrent):
    """cell = forget * cell + (1 - forget) * tanh(...); output * cell."""

    roles = {"weight": Role.INSIDE, "bias": Role.BIAS}

    def __init__(self, sizes: CellSizes, config: QRNNConfig) -> None:
        super().__init__()
        self.inputs, self.hidden, self.window = sizes.inputs, sizes.hidden, config.window
        self.zoneout, self.weight_drop = config.zoneout, config.weight_drop
        self.weight = nn.Parameter(torch.empty(3 * sizes.hidden, config.window * sizes.inputs))
        self.bias = nn.Parameter(torch.empty(3 * sizes.hidden))
        self.output = output_projection(sizes.hidden, sizes.outputs)

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden, self.inputs)[: self.window]

    def gate_logits(self, x: Inputs, ctx: Context, previous: States) -> tuple[Tensor, ...]:
        """Return candidate, forget gate and output gate before their activations."""
        starts = document_starts(ctx)
        window_inputs = x if self.window == 1 else torch.cat((_previous_inputs(x, previous[1], starts), x), -1)
        weight = F.dropout(self.weight, self.weight_drop, self.training).to(x.dtype)
        return F.linear(window_inputs, weight, self.bias.to(x.dtype)).chunk(3, -1)

    def gate_values(self, x: Inputs, ctx: Context, slot: object) -> tuple[CellGates, ...]:
        check_whole_rows(ctx)
        previous = self.initial_state(x, slot)
        candidate, forget_logits, output_logits = self.gate_logits(x, ctx, previous)
        share = self.apply_zoneout(upcast(forget_logits).neg().sigmoid())
        all_gates = torch.cat((1 - share, upcast(candidate).tanh(), upcast(output_logits).sigmoid()), -1)

        def step(now: Tensor, state: States) -> tuple[Mapping[str, Tensor], States]:
            forget, new, output = now.chunk(3, -1)
            cell = forget * state[0].to(now.dtype) + (1 - forget) * new
            return {"forget": forget, "candidate": new, "output": output, "cell": cell, "hidden": output * cell}, (
                cell,
            )

        found = run_gates("", "qrnn", all_gates.unbind(1), previous[:1], step)
        return (replace(found, last=(*found.last, x[:, -1])[: self.window]),)

    def step(self, x: Inputs, ctx: Context, slot: object) -> tuple[Outputs, HiddenState]:
        """Continue from the cell and, with a window of two, the last input."""
        previous, starts = self.initial_state(x, slot), document_starts(ctx)
        candidate, forget_logits, output_logits = self.gate_logits(x, ctx, previous)
        input_share = self.apply_zoneout(upcast(forget_logits).neg().sigmoid())  # 1 - forget
        forget_gate = 1 - input_share if starts is None else (1 - input_share).masked_fill(starts[..., None], 0)
        new = input_share * upcast(candidate).tanh()
        first = torch.addcmul(new[:, :1], forget_gate[:, :1], previous[0][:, None].to(new.dtype))
        cells = linear_scan(forget_gate, torch.cat((first, new[:, 1:]), 1)).to(x.dtype)
        after = (last_real(cells, previous[0], ctx), *(last_real(x, last, ctx) for last in previous[1:]))
        return self.output(output_logits.sigmoid() * cells), HiddenState(after)

    def apply_zoneout(self, input_share: Tensor) -> Tensor:
        """Apply zoneout: keep some cells in training, and scale by the expectation in evaluation."""
        if not self.zoneout:
            return input_share
        return input_share * (torch.rand_like(input_share) >= self.zoneout if self.training else 1 - self.zoneout)


def _previous_inputs(x: Inputs, previous: Tensor, starts: Bool[Tensor, "batch length"] | None) -> Inputs:
    """Return the input before each token; zeros where a document begins."""
    shifted = torch.cat((previous[:, None].to(x.dtype), x[:, :-1]), 1)
    return shifted if starts is None else shifted.masked_fill(starts[..., None], 0)
