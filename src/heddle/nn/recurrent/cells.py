"""RNN cells: RNN (Elman 1990), LSTM (Hochreiter & Schmidhuber 1997), GRU (Cho et al. 2014), and stacked cells."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from heddle.core import ConfigError, part
from heddle.nn.base import Context, Place
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig
from heddle.nn.recurrent.gates import CellGates
from heddle.nn.recurrent.recurrence import (
    CellConfig,
    CellSizes,
    MatrixCell,
    MatrixCellConfig,
    Outputs,
    Recurrent,
    RecurrentConfig,
)
from heddle.nn.recurrent.rnn_op import Inputs, States
from heddle.nn.state import HiddenState


@part("rnn")
class RNNConfig(MatrixCellConfig):
    """RNN: one hidden state without gates (Elman 1990).

    hidden: width of the state; None: the stream's width.
    weight_drop: DropConnect on the recurrent matrix: its rate in training (Merity et al. 2017).
    init_scale: initial weights are uniform within this / sqrt(hidden); None: the model's initializer.
    """

    hidden: int | None = None
    weight_drop: float = 0.0
    init_scale: float | None = None

    def layer(self, sizes: CellSizes) -> "RNN":
        return RNN(sizes, self)


class RNN(MatrixCell):
    """hidden = tanh(input + recurrent · hidden)."""

    kernel = "rnn"
    gates = 1
    state_count = 1

    def gated_step(
        self, input_gates: Tensor, recurrent_gates: Tensor, state: States
    ) -> tuple[Mapping[str, Tensor], States]:
        hidden = (input_gates + recurrent_gates).tanh()
        return {"hidden": hidden}, (hidden,)


@part("gru")
class GRUConfig(MatrixCellConfig):
    """GRU: a hidden state with reset and update gates (Cho et al. 2014).

    hidden: width of the state; None: the stream's width.
    weight_drop: DropConnect on the recurrent matrix: its rate in training (Merity et al. 2017).
    init_scale: initial weights are uniform within this / sqrt(hidden); None: the model's initializer.
    """

    hidden: int | None = None
    weight_drop: float = 0.0
    init_scale: float | None = None

    def layer(self, sizes: CellSizes) -> "GRU":
        return GRU(sizes, self)


class GRU(MatrixCell):
    """hidden = update * hidden + (1 - update) * tanh(...reset...)."""

    kernel = "gru"
    gates = 3
    state_count = 1

    def gated_step(
        self, input_gates: Tensor, recurrent_gates: Tensor, state: States
    ) -> tuple[Mapping[str, Tensor], States]:
        pairs = zip(input_gates.chunk(3, -1), recurrent_gates.chunk(3, -1), strict=True)
        (reset_in, reset_past), (update_in, update_past), (new_in, new_past) = pairs
        reset, update = (reset_in + reset_past).sigmoid(), (update_in + update_past).sigmoid()
        candidate = (new_in + reset * new_past).tanh()
        hidden = candidate.lerp(state[0], update)
        return {"reset": reset, "update": update, "candidate": candidate, "hidden": hidden}, (hidden,)


@part("lstm")
class LSTMConfig(MatrixCellConfig):
    """LSTM: a cell with input, forget and output gates (Hochreiter & Schmidhuber 1997).

    hidden: width of the state; None: the stream's width.
    weight_drop: DropConnect on the recurrent matrix: its rate in training (Merity et al. 2017).
    init_scale: initial weights are uniform within this / sqrt(hidden); None: the model's initializer.
    """

    hidden: int | None = None
    weight_drop: float = 0.0
    init_scale: float | None = None

    def layer(self, sizes: CellSizes) -> "LSTM":
        return LSTM(sizes, self)


class LSTM(MatrixCell):
    """cell = forget * cell + input * tanh(...); output * tanh(cell)."""

    kernel = "lstm"
    gates = 4
    state_count = 2

    def gated_step(
        self, input_gates: Tensor, recurrent_gates: Tensor, state: States
    ) -> tuple[Mapping[str, Tensor], States]:
        return lstm_gates(input_gates + recurrent_gates, state[1])


def lstm_gates(gates: Tensor, cell: Tensor) -> tuple[Mapping[str, Tensor], States]:
    """Return the values of an LSTM step, and its new states, from the sum of all products and the old cell."""
    input_gate, forget, candidate, output = gates.chunk(4, -1)
    input_gate, forget, output = input_gate.sigmoid(), forget.sigmoid(), output.sigmoid()
    candidate = candidate.tanh()
    cell = forget * cell + input_gate * candidate
    hidden = output * cell.tanh()
    named = {"input": input_gate, "forget": forget, "candidate": candidate, "output": output}
    return {**named, "cell": cell, "hidden": hidden}, (hidden, cell)


@part("stacked", was="deep")
class StackedCellsConfig(RecurrentConfig):
    """Stacked cells of different sizes, each fed with the output of the one below (Merity et al. 2017).

    A block for each cell would project every output to the stream's width first.

    cells: the cells, from the lowest up.
    dropout: dropout between cells.
    """

    cells: tuple[CellConfig, ...]
    dropout: DropoutConfig = ElementDropoutConfig()

    def __post_init__(self) -> None:
        if not self.cells:
            raise ConfigError("cells", want="at least one", got="none")

    def build(self, width: int, place: Place) -> "StackedCells":
        hidden = [width if cell.hidden is None else cell.hidden for cell in self.cells]
        sizes = [CellSizes(*three) for three in zip((width, *hidden), hidden, (*hidden[:-1], width), strict=False)]
        return StackedCells([cell.layer(size) for cell, size in zip(self.cells, sizes, strict=True)], self.dropout)


class StackedCells(Recurrent):
    """cell(dropout(cell(...)))."""

    def __init__(self, cells: Sequence[Recurrent], dropout: DropoutConfig) -> None:
        super().__init__()
        self.cells, self.dropout = nn.ModuleList(cells), dropout.build()
        self.typed_cells = list(cells)  # the same list, typed
        self.compilable = all(cell.compilable for cell in cells)

    def state_sizes(self) -> tuple[int, ...]:
        return tuple(size for cell in self.typed_cells for size in cell.state_sizes())

    def step(self, x: Inputs, ctx: Context, slot: object) -> tuple[Outputs, HiddenState]:
        """Continue every cell from its own states."""
        start = self.initial_state(x, slot)
        after: States = ()
        for number, cell in enumerate(self.typed_cells):
            count = len(cell.state_sizes())
            own, start = start[:count], start[count:]
            x, last = cell.step(self.dropout(x) if number else x, ctx, HiddenState(own))
            assert isinstance(last, HiddenState)
            after += last.vectors
        return x, HiddenState(after)

    def gate_values(self, x: Inputs, ctx: Context, slot: object) -> tuple[CellGates, ...]:
        start, found = self.initial_state(x, slot), list[CellGates]()
        for number, cell in enumerate(self.typed_cells):
            count = len(cell.state_sizes())
            own, start = HiddenState(start[:count]), start[count:]
            found += [replace(one, name=f"cells.{number}") for one in cell.gate_values(x, ctx, own)]
            x, _ = cell.step(x, ctx, own)
        return tuple(found)
