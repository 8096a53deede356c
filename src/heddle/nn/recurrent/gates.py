"""Gates of recurrent cells, recomputed step by step to be looked at: the fused kernels return their results alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.core import UsageError
from heddle.nn.base import Context
from heddle.nn.recurrent.rnn_op import States

GateStep = Callable[[Tensor, States], tuple[Mapping[str, Tensor], States]]  # one step: values by name, new states


@dataclass(frozen=True)
class CellGates:
    """What one cell computed at every step: its gates, candidates and states by name."""

    name: str  # of the cell within its part; "": the part itself
    kind: str
    values: Mapping[str, Float[Tensor, "batch length _"]]
    last: States  # the states after the last token, as the cell's own step returns them


def run_gates(name: str, kind: str, steps: Sequence[Tensor], start: States, step: GateStep) -> CellGates:
    """Run a cell over time, and keep what each step computes."""
    found: list[Mapping[str, Tensor]] = []
    state = start
    for now in steps:
        values, state = step(now, state)
        found.append(values)
    return CellGates(name, kind, {key: torch.stack([one[key] for one in found], 1) for key in found[0]}, state)


def check_whole_rows(ctx: Context) -> None:
    """Refuse packed and padded rows."""
    if ctx.documents is not None or ctx.lengths is not None:
        raise UsageError("gates: want one document a row, without padding")
