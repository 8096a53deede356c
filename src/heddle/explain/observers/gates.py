"""Gates of recurrent cells at every step, recomputed, and how far that is from the states of the fused kernel."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.explain.inputs import Observer, PartCall, Reading, Section, parts_of, watch_parts
from heddle.nn.base import upcast
from heddle.nn.recurrent import AttentionRNNSlot, Bidirectional, CellGates, Recurrent
from heddle.nn.state import HiddenState


@dataclass(frozen=True)
class GateMap:
    """The gates, candidates and states of one cell by name, [length, units]."""

    name: str
    kind: str
    sequence: str
    values: Mapping[str, Tensor]
    error: float  # the largest difference from the state that the model itself computed

    def about(self) -> dict[str, Any]:
        """Return all but the values as plain data."""
        own = {"name": self.name, "kind": self.kind, "sequence": self.sequence}
        return own | {"error": self.error, "memory": self.memory()}

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return self.about() | {"values": {name: value.tolist() for name, value in self.values.items()}}

    def memory(self) -> list[float] | None:
        """Return each unit's memory length in tokens, 1 / (1 - mean of what is kept); None: nothing is gated."""
        kept = self.values.get("forget", self.values.get("update"))
        if kept is None:
            return None
        found: list[float] = (1 / (1 - kept.mean(0)).clamp(min=1e-6)).tolist()
        return found


@dataclass(frozen=True)
class Gates(Section):
    """The gates of all cells, in the order of the forward pass."""

    cells: tuple[GateMap, ...]

    def plain(self) -> list[dict[str, Any]]:
        return [each.plain() for each in self.cells]


class GatesObserver(Observer):
    """Recomputes the gates of every recurrent layer after it has run."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.cells = reading, list[GateMap]()
        if not any(isinstance(part, Recurrent | Bidirectional) for _, part in parts_of(reading)):
            raise UsageError("gates: want a recurrent model, got one without cells")

    def attach(self, hooks: contextlib.ExitStack) -> None:
        watch_parts(self.reading, hooks, self.see)

    def see(self, call: PartCall) -> None:
        """Keep the gates of a layer."""
        if not isinstance(call.part, Recurrent | Bidirectional):
            return
        found = call.part.gate_values(call.x, call.ctx, call.slot)
        error = state_error(call, found) if found else 0.0
        for cell in found:
            name = f"{call.name}.{cell.name}".rstrip(".")
            values = {key: upcast(value[0]).cpu() for key, value in cell.values.items()}
            self.cells.append(GateMap(name, cell.kind, call.sequence.name, values, error))

    def result(self) -> Gates:
        if not self.cells:
            raise UsageError("gates: want cells with gates or a hidden state, got an n-gram window")
        return Gates(tuple(self.cells))


def state_error(call: PartCall, found: Sequence[CellGates]) -> float:
    """Return the largest difference of the recomputed states from those of the part's own step."""
    part, recomputed = call.part, [vector for cell in found for vector in cell.last]
    if isinstance(part, Bidirectional):
        both = torch.cat([cell.values["hidden"] for cell in found], -1).to(call.x.dtype)
        return float((part.output(both) - part(call.x, call.ctx)).abs().max())
    if not isinstance(part, Recurrent):
        raise UsageError(f"{call.name}: want a recurrent part, got {type(part).__name__}")
    _, after = part.step(call.x, call.ctx, call.slot)
    vectors = after.vectors if isinstance(after, HiddenState | AttentionRNNSlot) else ()
    pairs = zip(vectors, recomputed, strict=True)
    return max(float((own - again).abs().max()) for own, again in pairs)
