"""The mogrifier equals its equations written plainly, and without rounds it is an LSTM."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.nn.base import Context, Place
from heddle.nn.recurrent import LSTMConfig, MogrifierConfig

WIDTH, HIDDEN = 6, 5


def built(config: MogrifierConfig | LSTMConfig) -> Any:
    module = config.build(WIDTH, Place()).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return module


def x(batch: int = 3, length: int = 7) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def plainly(m: Any, row: Tensor) -> Tensor:
    """Run the equations of the paper over one row, numbered as there: odd rounds change x, even ones h."""
    hidden, cell, outputs = row.new_zeros(m.hidden), row.new_zeros(m.hidden), []
    for now in row:
        for i, step in enumerate(m.rounds, 1):
            matrix = (
                step.factors[0].weight if len(step.factors) == 1 else step.factors[1].weight @ step.factors[0].weight
            )
            if i % 2:
                now = 2 * torch.sigmoid(matrix @ hidden) * now
            else:
                hidden = 2 * torch.sigmoid(matrix @ now) * hidden
        gates = m.input_weight @ now + m.input_bias + m.recurrent_weight @ hidden + m.recurrent_bias
        enter, forget, new, leave = gates.chunk(4)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(leave) * torch.tanh(cell)
        outputs.append(hidden)
    return m.output(torch.stack(outputs))


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("hidden", [None, HIDDEN])
def test_a_row_equals_the_equations(rounds: int, rank: int | None, hidden: int | None) -> None:
    module = built(MogrifierConfig(rounds=rounds, rank=rank, hidden=hidden))
    got = module(x(), Context())
    for row, want in zip(got, x(), strict=True):
        torch.testing.assert_close(row, plainly(module, want))


def test_packed_documents_and_unequal_rows_equal_the_equations() -> None:
    module = built(MogrifierConfig(rank=2, hidden=HIDDEN))
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 9], [0, 1, 1, 1, 1, 1, 9]])
    got = module(x(2), Context(documents=documents, lengths=torch.tensor([6, 6])))
    for row, cuts in enumerate([((0, 3), (3, 5), (5, 6)), ((0, 1), (1, 6))]):
        for start, stop in cuts:
            torch.testing.assert_close(got[row, start:stop], plainly(module, x(2)[row, start:stop]))


def test_without_rounds_it_is_an_lstm() -> None:
    module, lstm = built(MogrifierConfig(rounds=0)), built(LSTMConfig())
    torch.testing.assert_close(module(x(), Context()), lstm(x(), Context()))


def test_a_matrix_multiplied_out_gates_as_its_factors_do() -> None:
    step = built(MogrifierConfig(rank=2)).rounds[0]
    (whole,), (first, second) = (
        step.halved_factors(torch.float64, merged=True),
        step.halved_factors(torch.float64, merged=False),
    )
    torch.testing.assert_close(whole, second @ first)


def test_rounds_of_full_rank_have_one_matrix_each() -> None:
    sizes = {name: tuple(p.shape) for name, p in built(MogrifierConfig(hidden=HIDDEN, rounds=3)).named_parameters()}
    assert [sizes[f"rounds.{n}.factors.0.weight"] for n in range(3)] == [(6, 5), (5, 6), (6, 5)]


@pytest.mark.parametrize(("field", "value"), [("rounds", -1), ("rank", 0), ("hidden", 0), ("weight_drop", 1.5)])
def test_what_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        MogrifierConfig(**{field: value})
