"""Mogrifier LSTM: input and hidden state gate each other in rounds before each LSTM step (Melis et al. 2020)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import ConfigError, check_at_least, part
from heddle.nn.base import Context, Linear, Module
from heddle.nn.recurrent.cells import lstm_gates
from heddle.nn.recurrent.gates import CellGates, check_whole_rows, run_gates
from heddle.nn.recurrent.recurrence import CellSizes, MatrixCell, MatrixCellConfig
from heddle.nn.recurrent.rnn_op import Inputs, States, mogrify


@part("mogrifier")
class MogrifierConfig(MatrixCellConfig):
    """Mogrifier LSTM: the state gates the input, the gated input gates the state, and so on.

    hidden: width of the state; None: the stream's width.
    rounds: how many times input and state gate each other.
    rank: rank of each round's matrix; None: full.
    weight_drop: DropConnect on the recurrent matrix: its rate in training (Merity et al. 2017).
    init_scale: initial weights are uniform within this / sqrt(hidden); None: the model's initializer.
    """

    hidden: int | None = None
    rounds: int = 5
    rank: int | None = None
    weight_drop: float = 0.0
    init_scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 0:
            raise ConfigError("rounds", want="0 (a plain LSTM) or more", got=self.rounds)
        check_at_least(1, rank=self.rank)

    def layer(self, sizes: CellSizes) -> "Mogrifier":
        return Mogrifier(sizes, self)


class MogrifierRound(Module):
    """y * 2 sigmoid(matrix · x)."""

    def __init__(self, inputs: int, outputs: int, rank: int | None) -> None:
        super().__init__()
        factors = [Linear(inputs, outputs)] if rank is None else [Linear(inputs, rank), Linear(rank, outputs)]
        self.factors = nn.ModuleList(factors)

    def halved_factors(self, dtype: torch.dtype, merged: bool) -> list[Tensor]:
        """Return half the matrix, or its factors with the first halved, since 2 sigmoid(a) = 1 + tanh(a / 2).

        With `merged`, the factors are multiplied once, so that each step launches one product less.
        """
        first, *rest = (factor.dense_weight(dtype) for factor in self.factors if isinstance(factor, Linear))
        first = first / 2
        return [rest[0] @ first] if merged and rest else [first, *rest]


class Mogrifier(MatrixCell):
    """x, hidden = rounds(x, hidden); then an LSTM step."""

    kernel = "mogrifier"
    compilable = False  # as one operator it would run twice, since it has no backward pass of its own
    gates = 4
    state_count = 2

    def __init__(self, sizes: CellSizes, config: MogrifierConfig) -> None:
        super().__init__(sizes, config)
        ends = ((sizes.hidden, sizes.inputs), (sizes.inputs, sizes.hidden))  # state gates input, then back
        self.rounds = nn.ModuleList(MogrifierRound(*ends[n % 2], rank=config.rank) for n in range(config.rounds))

    def gate_values(self, x: Inputs, ctx: Context, slot: object) -> tuple[CellGates, ...]:
        check_whole_rows(ctx)
        input_weight, recurrent_weight, bias, recurrent_bias = self.weights(x.dtype)
        matrices = [r.halved_factors(x.dtype, False) for r in self.rounds if isinstance(r, MogrifierRound)]

        def step(now: Tensor, state: States) -> tuple[Mapping[str, Tensor], States]:
            hidden, cell = state
            for number, factors in enumerate(matrices):
                if number % 2:
                    hidden = mogrify(hidden, now, factors)
                else:
                    now = mogrify(now, hidden, factors)
            products = F.linear(now, input_weight, bias), F.linear(hidden, recurrent_weight, recurrent_bias)
            values, after = self.gated_step(*products, (hidden, cell))
            return {"gated_input": now, "gated_hidden": hidden, **values}, after

        return (run_gates("", "mogrifier", x.unbind(1), self.initial_state(x, slot), step),)

    def gated_step(
        self, input_gates: Tensor, recurrent_gates: Tensor, state: States
    ) -> tuple[Mapping[str, Tensor], States]:
        return lstm_gates(input_gates + recurrent_gates, state[1])

    def kernel_and_weights(self, x: Inputs) -> tuple[str, list[Tensor]]:
        merged = x.is_cuda and x.shape[1] > 1
        halved_factors = [r.halved_factors(x.dtype, merged) for r in self.rounds if isinstance(r, MogrifierRound)]
        kernel = "mogrifier_factors" if halved_factors and len(halved_factors[0]) > 1 else self.kernel
        return kernel, [*self.weights(x.dtype), *(matrix for factors in halved_factors for matrix in factors)]
