"""Recurrence: what all RNN cells share: weights, packed documents, padded rows and the hidden states."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import ConfigError, check_at_least, check_share
from heddle.nn.base import Context, InitialValues, Linear, MixerConfig, Place, Role, Stateful
from heddle.nn.recurrent.gates import CellGates, check_whole_rows, run_gates
from heddle.nn.recurrent.rnn_op import Inputs, RNNInput, States, run_rnn
from heddle.nn.state import HiddenState

Outputs = Float[Tensor, "batch length outputs"]


class RecurrentConfig(MixerConfig):
    """Any recurrent mixer: it sees the past through its hidden states, and never the future."""


@dataclass(frozen=True)
class CellSizes:
    """Widths of a layer's inputs, hidden state and outputs."""

    inputs: int
    hidden: int
    outputs: int


class CellConfig(RecurrentConfig):
    """A recurrent layer."""

    hidden: int | None  # None: the width; another size is projected back to it

    @abstractmethod
    def layer(self, sizes: CellSizes) -> "Recurrent":
        """Build the layer; the three sizes may differ."""

    def build(self, width: int, place: Place) -> "Recurrent":
        return self.layer(CellSizes(width, width if self.hidden is None else self.hidden, width))


class MatrixCellConfig(CellConfig):
    """A cell with an input matrix, a recurrent matrix, and a bias for each."""

    old_fields = {"spread": "init_scale"}

    hidden: int | None
    weight_drop: float  # DropConnect on the recurrent matrix: its rate in training (Merity et al. 2017)
    init_scale: float | None  # initial values uniform within this / sqrt(hidden); None: the model's initializer

    def __post_init__(self) -> None:
        check_at_least(1, hidden=self.hidden)
        check_share(weight_drop=self.weight_drop)
        if self.init_scale is not None and self.init_scale <= 0:
            raise ConfigError("init_scale", want="above 0, or null for the model's initializer", got=self.init_scale)


class Recurrent(Stateful, ABC):
    """Recurrent part: hidden states that a bridge can initialize and a stream can carry on (truncated BPTT)."""

    @abstractmethod
    def state_sizes(self) -> tuple[int, ...]:
        """Return the size of each state vector."""

    def forward(self, x: Inputs, ctx: Context) -> Outputs:
        y, _ = self.step(x, ctx, None)
        return y

    def gate_values(self, x: Inputs, ctx: Context, slot: object) -> tuple[CellGates, ...]:
        """Recompute the gates and states of each cell inside, for inspection; (): it has neither."""
        return ()

    def initial_state(self, x: Inputs, slot: object) -> States:
        """Return the states of the slot, or zeros."""
        if isinstance(slot, HiddenState):
            return slot.vectors
        return tuple(x.new_zeros(x.shape[0], size) for size in self.state_sizes())


class MatrixCell(Recurrent, ABC):
    """RNN, GRU, LSTM and mogrifier: cells with an input matrix, a recurrent matrix, and a bias for each."""

    compilable = False  # not yet measured as one operator against plain code on a GPU
    kernel: ClassVar[str]  # its name in `rnn_op`
    gates: ClassVar[int]
    state_count: ClassVar[int]  # state vectors: 2 with a cell, else 1
    roles = {
        "input_weight": Role.INSIDE,
        "recurrent_weight": Role.RECURRENT,
        "input_bias": Role.BIAS,
        "recurrent_bias": Role.BIAS,
    }

    def __init__(self, sizes: CellSizes, config: MatrixCellConfig) -> None:
        super().__init__()
        self.hidden, self.weight_drop = sizes.hidden, config.weight_drop
        self.input_weight = nn.Parameter(torch.empty(self.gates * sizes.hidden, sizes.inputs))
        self.recurrent_weight = nn.Parameter(torch.empty(self.gates * sizes.hidden, sizes.hidden))
        self.input_bias = nn.Parameter(torch.empty(self.gates * sizes.hidden))
        self.recurrent_bias = nn.Parameter(torch.empty(self.gates * sizes.hidden))  # cuDNN requires both
        self.output = output_projection(sizes.hidden, sizes.outputs)
        if config.init_scale is not None:
            values = InitialValues(scale=config.init_scale * sizes.hidden**-0.5, distribution="uniform")
            self.initial_values = dict.fromkeys(self.roles, values)

    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden,) * self.state_count

    def step(self, x: Inputs, ctx: Context, slot: object) -> tuple[Outputs, HiddenState]:
        """Continue from the state; documents after a row's first start from zeros."""
        inputs = RNNInput(x, ctx.documents, ctx.lengths, self.initial_state(x, slot))
        kernel, weights = self.kernel_and_weights(x)
        y, last = run_rnn(kernel, inputs, weights)
        if ctx.lengths is not None:  # a row without new tokens stays as it was
            last = tuple(v.where(ctx.lengths[:, None] > 0, s) for v, s in zip(last, inputs.start, strict=True))
        return self.output(y), HiddenState(last)

    def kernel_and_weights(self, x: Inputs) -> tuple[str, list[Tensor]]:
        """Return the name of the kernel for this input, and its weights."""
        return self.kernel, self.weights(x.dtype)

    def gate_values(self, x: Inputs, ctx: Context, slot: object) -> tuple[CellGates, ...]:
        check_whole_rows(ctx)
        input_weight, recurrent_weight, bias, recurrent_bias = self.weights(x.dtype)
        steps = F.linear(x, input_weight, bias).unbind(1)

        def step(now: Tensor, state: States) -> tuple[Mapping[str, Tensor], States]:
            return self.gated_step(now, F.linear(state[0], recurrent_weight, recurrent_bias), state)

        return (run_gates("", self.kernel, steps, self.initial_state(x, slot), step),)

    @abstractmethod
    def gated_step(
        self, input_gates: Tensor, recurrent_gates: Tensor, state: States
    ) -> tuple[Mapping[str, Tensor], States]:
        """Return the values of one step by name, and the new states, from the products of both matrices."""

    def weights(self, dtype: torch.dtype) -> list[Tensor]:
        """Return the weights in the order and dtype of the kernels, with DropConnect on the recurrent matrix."""
        recurrent = F.dropout(self.recurrent_weight, self.weight_drop, self.training)
        all_four = (self.input_weight, recurrent, self.input_bias, self.recurrent_bias)
        if not self.input_weight.is_cuda or torch.compiler.is_compiling():  # there the operator flattens them
            return [w.to(dtype) for w in all_four]
        # cuDNN requires contiguous weights, and copies them at every call if they are not
        flat = torch.cat([w.flatten() for w in all_four]).to(dtype)
        return [view.view_as(w) for view, w in zip(flat.split([w.numel() for w in all_four]), all_four, strict=True)]


def output_projection(hidden: int, outputs: int) -> nn.Module:
    """Return the projection from hidden units to outputs: the identity if they have the same width."""
    return nn.Identity() if hidden == outputs else Linear(hidden, outputs, role=Role.INTO_STREAM)


def document_starts(ctx: Context) -> Bool[Tensor, "batch length"] | None:
    """Tell where a document begins that is not its row's first; None: one document a row."""
    if ctx.documents is None:
        return None
    return F.pad(ctx.documents[:, 1:] != ctx.documents[:, :-1], (1, 0))


def last_real(
    x: Float[Tensor, "batch length width"], before: Float[Tensor, "batch width"], ctx: Context
) -> Float[Tensor, "batch width"]:
    """Return each row's vector at its last real token, or `before` where it has none."""
    if ctx.lengths is None:
        return x[:, -1]
    found = x.take_along_dim((ctx.lengths - 1).clamp(min=0)[:, None, None], dim=1)[:, 0]
    return found.where(ctx.lengths[:, None] > 0, before)


@dataclass(frozen=True)
class RowBoundaries:
    """Where documents begin and padding starts, for a loop over time."""

    starts: tuple[Bool[Tensor, "batch 1"], ...] | None
    real: tuple[Bool[Tensor, "batch 1"], ...] | None

    @classmethod
    def of(cls, x: Inputs, ctx: Context) -> "RowBoundaries":
        """Read them from the context; the given state belongs to a row's first document."""
        return cls(*(None if r is None else r[..., None].unbind(1) for r in (document_starts(ctx), ctx.real(x))))

    def reset(self, t: int, state: States) -> States:
        """Return zeros where a document begins."""
        return state if self.starts is None else tuple(v.masked_fill(self.starts[t], 0) for v in state)

    def hold(self, t: int, state: States, old: States) -> States:
        """Return the previous state where the token is padding."""
        if self.real is None:
            return state
        return tuple(v.where(self.real[t], o) for v, o in zip(state, old, strict=True))
