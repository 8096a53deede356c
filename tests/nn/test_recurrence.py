"""RNN, LSTM and GRU equal torch's own, in packed documents, unequal rows and carried state, gradients included."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.nn.base import Context, Place
from heddle.nn.recurrent import GRUConfig, LSTMConfig, RecurrentConfig, RNNConfig
from heddle.nn.recurrent.recurrence import MatrixCell
from heddle.nn.recurrent.rnn_op import RNNInput, pack_sequences
from heddle.nn.state import HiddenState

KINDS = [RNNConfig(), LSTMConfig(), GRUConfig()]
THEIRS = {RNNConfig: torch.nn.RNN, LSTMConfig: torch.nn.LSTM, GRUConfig: torch.nn.GRU}
WIDTH = 6


def pair(config: RecurrentConfig) -> tuple[Any, Any]:
    """Build ours and torch's with the same weights."""
    torch.manual_seed(0)
    ours: Any = config.build(WIDTH, Place()).double()
    theirs: Any = THEIRS[type(config)](WIDTH, ours.hidden, batch_first=True).double()
    with torch.no_grad():
        ours.input_weight.copy_(theirs.weight_ih_l0)
        ours.recurrent_weight.copy_(theirs.weight_hh_l0)
        ours.input_bias.copy_(theirs.bias_ih_l0)
        ours.recurrent_bias.copy_(theirs.bias_hh_l0)
    return ours, theirs


def vectors(last: Tensor | tuple[Tensor, Tensor]) -> list[Tensor]:
    return [v[0] for v in (last if isinstance(last, tuple) else (last,))]


def x(batch: int = 3, length: int = 8) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
def test_a_row_equals_torch(config: RecurrentConfig) -> None:
    ours, theirs = pair(config)
    want, last = theirs(x())
    out, slot = ours.step(x(), Context(), None)
    torch.testing.assert_close(out, want)
    assert torch.equal(out, ours(x(), Context()))
    for got, wanted in zip(slot.vectors, vectors(last), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
def test_documents_begin_anew_but_the_first_goes_on(config: RecurrentConfig) -> None:
    ours, theirs = pair(config)
    _, before = ours.step(x(2, 3), Context(), None)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [5, 5, 5, 5, 5, 5, 5, 5]])
    rows = x(2, 8)
    out, slot = ours.step(rows, Context(documents=documents), before)
    for row, cuts in enumerate([(0, 3, 7, 8), (0, 8)]):
        for start, stop in pairwise(cuts):
            piece = rows[row : row + 1, start:stop]
            carried = HiddenState(tuple(v[row : row + 1] for v in before.vectors)) if start == 0 else None
            want, last = ours.step(piece, Context(), carried)
            torch.testing.assert_close(out[row : row + 1, start:stop], want)
        for got, wanted in zip(slot.vectors, last.vectors, strict=True):
            torch.testing.assert_close(got[row : row + 1], wanted)
    want, _ = theirs(rows[:1, 3:7])
    torch.testing.assert_close(out[:1, 3:7], want)


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
def test_unequal_rows_stop_where_their_tokens_end(config: RecurrentConfig) -> None:
    ours, theirs = pair(config)
    new = torch.tensor([8, 3, 1])
    out, slot = ours.step(x(), Context(lengths=new), None)
    for row, count in enumerate(new.tolist()):
        want, last = theirs(x()[row : row + 1, :count])
        torch.testing.assert_close(out[row : row + 1, :count], want)
        for got, wanted in zip(slot.vectors, vectors(last), strict=True):
            torch.testing.assert_close(got[row : row + 1], wanted)
        assert out[row, count:].count_nonzero() == 0


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
def test_a_row_without_new_tokens_stays_as_it_was(config: RecurrentConfig) -> None:
    ours, _ = pair(config)
    _, before = ours.step(x(), Context(), None)
    _, after = ours.step(x(), Context(lengths=torch.tensor([0, 2, 0])), before)
    for old, new in zip(before.vectors, after.vectors, strict=True):
        assert torch.equal(old[[0, 2]], new[[0, 2]])
        assert not torch.equal(old[1], new[1])


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
def test_padding_with_a_document_number_of_its_own_is_no_piece(config: RecurrentConfig) -> None:
    ours, _ = pair(config)
    documents, new = torch.tensor([[0, 0, 1, 1, 1, 9, 9, 9]] * 3), torch.tensor([5, 2, 5])
    out, slot = ours.step(x(), Context(documents=documents, lengths=new), None)
    cut, last = ours.step(x()[:, :5], Context(documents=documents[:, :5]), None)
    torch.testing.assert_close(out[[0, 2], :5], cut[[0, 2]])
    for got, wanted in zip(slot.vectors, last.vectors, strict=True):
        torch.testing.assert_close(got[[0, 2]], wanted[[0, 2]])
    _, short = ours.step(x()[1:2, :2], Context(), None)
    torch.testing.assert_close(slot.vectors[0][1:2], short.vectors[0])


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 1, 1]] * 3)], ids=["plain", "documents"])
def test_gradient_flows_through_the_carried_state(config: RecurrentConfig, documents: Tensor | None) -> None:
    ours, _ = pair(config)
    whole = x().requires_grad_()
    _, carried = ours.step(whole[:, :4], Context(), None)
    second, _ = ours.step(whole[:, 4:], Context(documents=documents), carried)
    (gradient,) = torch.autograd.grad(second[:, 1].sum(), whole, retain_graph=True)
    assert gradient[:, :4].abs().min() > 0
    if documents is None:
        (want,) = torch.autograd.grad(ours(whole, Context())[:, 5].sum(), whole)
        torch.testing.assert_close(gradient, want)
    else:
        (gradient,) = torch.autograd.grad(second[:, 2:].sum(), whole)
        assert gradient[:, :6].count_nonzero() == 0


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
@pytest.mark.parametrize("how", ["plain", "documents"])
def test_weight_gradients_equal_torch(config: RecurrentConfig, how: str) -> None:
    ours, theirs = pair(config)
    documents = None if how == "plain" else torch.zeros(3, 8, dtype=torch.long)
    ours(x(), Context(documents=documents)).square().sum().backward()
    theirs(x())[0].square().sum().backward()
    torch.testing.assert_close(ours.input_weight.grad, theirs.weight_ih_l0.grad)
    torch.testing.assert_close(ours.recurrent_weight.grad, theirs.weight_hh_l0.grad)
    torch.testing.assert_close(ours.input_bias.grad, theirs.bias_ih_l0.grad)
    torch.testing.assert_close(ours.recurrent_bias.grad, theirs.bias_hh_l0.grad)


@pytest.mark.parametrize(
    "config", [LSTMConfig(hidden=9), GRUConfig(hidden=3), RNNConfig(hidden=4)], ids=lambda c: c.kind
)
def test_another_hidden_size_is_projected_back(config: RecurrentConfig) -> None:
    ours, theirs = pair(config)
    torch.nn.init.normal_(ours.output.weight)
    want = theirs(x())[0] @ ours.output.weight.T
    torch.testing.assert_close(ours(x(), Context()), want)


def test_pieces_cover_each_real_token_once() -> None:
    documents = torch.tensor([[0, 0, 1, 2, 2], [0, 1, 1, 1, 1]])
    packed = pack_sequences(RNNInput(x(2, 5), documents, torch.tensor([4, 5]), ()))
    assert packed is not None
    # pieces: row 0 has tokens 0-1, 2, 3; row 1 has 5, 6-9; token 4 is padding; the longest piece comes first
    assert packed.count == 5
    assert packed.batch_sizes.tolist() == [5, 2, 1, 1]
    assert packed.order.tolist() == [6, 0, 2, 3, 5, 7, 1, 8, 9]
    assert (packed.first.tolist(), packed.last.tolist()) == ([1, 4], [3, 0])


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
def test_a_cell_in_an_encoder_still_reads_forwards_only(config: RecurrentConfig) -> None:
    ours: Any = config.build(WIDTH, Place(sight="all")).double()
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    rows = x().requires_grad_()
    (gradient,) = torch.autograd.grad(ours(rows, Context())[:, 3].sum(), rows)
    assert gradient[:, :4].abs().min() > 0
    assert gradient[:, 4:].count_nonzero() == 0


@pytest.mark.parametrize("cls", [RNNConfig, LSTMConfig, GRUConfig])
def test_no_hidden_units_are_refused(cls: type[LSTMConfig]) -> None:
    with pytest.raises(ConfigError, match="hidden"):
        cls(hidden=0)


@pytest.mark.parametrize("config", KINDS, ids=lambda c: c.kind)
def test_half_precision_streams_stay_half(config: RecurrentConfig) -> None:
    ours = config.build(WIDTH, Place())
    assert isinstance(ours, MatrixCell)
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    rows = x().bfloat16()
    documents = torch.tensor([[0] * 3 + [1] * 5] * 3)
    for ctx in (Context(), Context(documents=documents)):
        out, slot = ours.step(rows, ctx, None)
        assert out.dtype == torch.bfloat16 == slot.vectors[0].dtype
        torch.testing.assert_close(out.float(), ours(rows.float(), ctx), atol=0.02, rtol=0.02)
