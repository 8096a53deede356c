"""Dropped weights, first values, and cells of unequal size on top of each other."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.nn.base import Context, Place, UniformInitConfig, initialize
from heddle.nn.layers import VariationalDropoutConfig
from heddle.nn.recurrent import (
    GRUConfig,
    LSTMConfig,
    MogrifierConfig,
    QRNNConfig,
    RecurrentConfig,
    RNNConfig,
    StackedCellsConfig,
)
from heddle.nn.state import HiddenState

WIDTH = 6


def built(config: RecurrentConfig, seed: int = 0) -> Any:
    module = config.build(WIDTH, Place()).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return module


def x(length: int = 8) -> Tensor:
    return torch.randn(3, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cls", [RNNConfig, GRUConfig, LSTMConfig, MogrifierConfig], ids=lambda c: c.kind)
@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]] * 3)], ids=["plain", "documents"])
def test_dropped_weights_are_a_plain_cell_with_part_of_its_matrix(cls: Any, documents: Tensor | None) -> None:
    dropping, plain = built(cls(weight_drop=0.5)), built(cls())
    ctx = Context(documents=documents)
    torch.manual_seed(3)
    got = dropping(x(), ctx)
    torch.manual_seed(3)
    mask = torch.nn.functional.dropout(torch.ones_like(plain.recurrent_weight), 0.5)
    with torch.no_grad():
        plain.recurrent_weight.mul_(mask)
    assert 0 < int((mask == 0).sum()) < mask.numel()
    torch.testing.assert_close(got, plain(x(), ctx))
    got.sum().backward()
    assert dropping.recurrent_weight.grad[mask == 0].count_nonzero() == 0


def test_each_forward_drops_other_weights_and_none_at_rest() -> None:
    module = built(LSTMConfig(weight_drop=0.5))
    assert not torch.equal(module(x(), Context()), module(x(), Context()))
    whole = built(LSTMConfig())(x(), Context())
    assert torch.equal(module.eval()(x(), Context()), whole)


def test_first_values_lie_within_their_spread_of_the_hidden_size() -> None:
    model = LSTMConfig(hidden=100, init_scale=1.0).build(WIDTH, Place())
    initialize(model, UniformInitConfig(), 1, seed=0)
    for weight in (model.input_weight, model.recurrent_weight, model.input_bias, model.recurrent_bias):
        assert 0.09 < weight.abs().max() <= 0.1
        assert weight.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.1)
    plain = LSTMConfig(hidden=100).build(WIDTH, Place())
    initialize(plain, UniformInitConfig(), 1, seed=0)
    assert plain.input_bias.count_nonzero() == 0  # as the model's initializer says
    assert 0.39 < plain.input_weight.abs().max() <= WIDTH**-0.5


def test_deep_cells_are_torch_layers_of_unequal_size() -> None:
    deep = built(StackedCellsConfig(cells=(LSTMConfig(hidden=9), GRUConfig(hidden=4), LSTMConfig())))
    want, last = x(), []
    for cell, cls in zip(deep.cells, (torch.nn.LSTM, torch.nn.GRU, torch.nn.LSTM), strict=True):
        theirs: Any = cls(want.shape[-1], cell.hidden, batch_first=True).double()
        with torch.no_grad():
            theirs.weight_ih_l0.copy_(cell.input_weight)
            theirs.weight_hh_l0.copy_(cell.recurrent_weight)
            theirs.bias_ih_l0.copy_(cell.input_bias)
            theirs.bias_hh_l0.copy_(cell.recurrent_bias)
        want, state = theirs(want)
        last += [v[0] for v in (state if isinstance(state, tuple) else (state,))]
    got, slot = deep.step(x(), Context(), None)
    torch.testing.assert_close(got, want)
    assert deep.state_sizes() == (9, 9, 4, 6, 6) == tuple(v.shape[1] for v in slot.vectors)
    for ours, theirs in zip(slot.vectors, last, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_last_deep_cell_is_projected_back_to_the_width() -> None:
    assert built(StackedCellsConfig(cells=(RNNConfig(), RNNConfig(hidden=9))))(x(), Context()).shape == x().shape


def test_deep_dropout_lies_between_cells_only() -> None:
    cells = (RNNConfig(hidden=50), RNNConfig())
    dropping, plain = (
        built(StackedCellsConfig(cells=cells, dropout=VariationalDropoutConfig(rate=0.5))),
        built(StackedCellsConfig(cells=cells)),
    )
    torch.manual_seed(0)
    got = dropping(x(), Context())
    torch.manual_seed(0)
    mask = torch.nn.functional.dropout(torch.ones(3, 1, 50, dtype=torch.float64), 0.5)
    torch.testing.assert_close(got, plain.cells[1](plain.cells[0](x(), Context()) * mask, Context()))
    assert torch.equal(dropping.eval()(x(), Context()), plain(x(), Context()))


def test_deep_cells_go_on_from_any_mixture_of_vectors() -> None:
    deep = built(StackedCellsConfig(cells=(QRNNConfig(hidden=3), MogrifierConfig(hidden=5, rounds=3), GRUConfig())))
    whole = deep(x(), Context())
    first, slot = deep.step(x()[:, :5], Context(), None)
    assert isinstance(slot, HiddenState)
    second, _ = deep.step(x()[:, 5:], Context(), slot)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StackedCellsConfig(cells=()), "cells: want at least one"),
        (lambda: LSTMConfig(weight_drop=1.0), "weight_drop: want at least 0 and below 1"),
        (lambda: GRUConfig(init_scale=0.0), "init_scale: want above 0"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
