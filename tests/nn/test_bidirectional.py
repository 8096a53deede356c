"""Bidirectional recurrence equals torch's own, reads each document by itself, and stays out of language models."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, UsageError
from heddle.nn.base import Context, Place
from heddle.nn.recurrent import BidirectionalConfig, GRUConfig, LSTMConfig, QRNNConfig
from heddle.nn.state import State

WIDTH = 6
CELLS = [LSTMConfig(), LSTMConfig(hidden=5), GRUConfig(), GRUConfig(hidden=5)]


def built(config: BidirectionalConfig) -> Any:
    module = config.build(WIDTH, Place(sight="all")).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return module


def x(batch: int = 3, length: int = 7) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def theirs(module: Any) -> Any:
    cls = torch.nn.LSTM if type(module.forwards).__name__ == "LSTM" else torch.nn.GRU
    made: Any = cls(WIDTH, module.forwards.hidden, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for cell, suffix in ((module.forwards, ""), (module.backwards, "_reverse")):
            made.get_parameter(f"weight_ih_l0{suffix}").copy_(cell.input_weight)
            made.get_parameter(f"weight_hh_l0{suffix}").copy_(cell.recurrent_weight)
            made.get_parameter(f"bias_ih_l0{suffix}").copy_(cell.input_bias)
            made.get_parameter(f"bias_hh_l0{suffix}").copy_(cell.recurrent_bias)
    return made


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: f"{c.kind}-{c.hidden}")
def test_rows_of_unequal_length_equal_torch(cell: Any) -> None:
    module, lengths = built(BidirectionalConfig(cell=cell)), torch.tensor([7, 3, 1])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x(), lengths, batch_first=True)
    want, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(module)(packed)[0], batch_first=True)
    got = module(x(), Context(lengths=lengths))
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(got[row, :length], module.output(want)[row, :length])


def test_whole_rows_equal_torch_and_half_widths_need_no_projection() -> None:
    module = built(BidirectionalConfig())
    torch.testing.assert_close(module(x(), Context()), theirs(module)(x())[0])
    assert not list(module.output.parameters())


@pytest.mark.parametrize(
    "cell", [LSTMConfig(), QRNNConfig(), QRNNConfig(hidden=4)], ids=lambda c: f"{c.kind}-{c.hidden}"
)
def test_packed_documents_are_read_apart(cell: Any) -> None:
    module, rows = built(BidirectionalConfig(cell=cell)), x(2)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 9], [4, 4, 4, 4, 4, 7, 7]])
    got = module(rows, Context(documents=documents, lengths=torch.tensor([6, 7])))
    for row, cuts in enumerate([((0, 3), (3, 5), (5, 6)), ((0, 5), (5, 7))]):
        for start, stop in cuts:
            alone = module(rows[row : row + 1, start:stop], Context())
            torch.testing.assert_close(got[row : row + 1, start:stop], alone)


def test_every_output_sees_every_input() -> None:
    module, rows = built(BidirectionalConfig()), x().requires_grad_()
    for place in (0, 3, 6):
        (gradient,) = torch.autograd.grad(module(rows, Context())[:, place].sum(), rows)
        assert gradient.abs().amin() > 0


def test_a_language_model_cannot_be_bidirectional() -> None:
    with pytest.raises(ConfigError, match="the backward cell sees the tokens that a language model predicts"):
        BidirectionalConfig().build(WIDTH, Place(sight="past"))


def test_a_state_to_go_on_from_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot continue from a state"):
        built(BidirectionalConfig())(x(), Context(state=State.empty(3, 7)))


def test_an_odd_width_wants_a_hidden_size() -> None:
    with pytest.raises(ConfigError, match="hidden: want a number"):
        BidirectionalConfig().build(7, Place(sight="all"))
    assert BidirectionalConfig(cell=GRUConfig(hidden=2)).build(7, Place(sight="all"))
