"""The cost of restless activations: its formula, documents and padding left out, and k micro-batches are one batch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.data.rows import Batch
from heddle.models.presets import build
from heddle.nn.base import Context, Place
from heddle.nn.recurrent import ActivationPenaltyConfig
from heddle.objectives import NextTokenConfig

WIDTH = 6


def x() -> Tensor:
    return torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def penalty(config: ActivationPenaltyConfig, ctx: Context) -> Tensor:
    module: Any = config.build(WIDTH, Place())
    assert module(x(), ctx) is not None
    (penalty,) = module.penalties
    return penalty


def test_the_stream_passes_unchanged_and_costs_nothing_at_rest() -> None:
    module: Any = ActivationPenaltyConfig(size=2.0, change=1.0).build(WIDTH, Place()).eval()
    rows = x()
    assert module(rows, Context()) is rows
    assert module.penalties == []


def test_the_cost_is_the_mean_square_and_that_of_the_changes() -> None:
    torch.testing.assert_close(penalty(ActivationPenaltyConfig(size=2.0), Context()), 2 * x().square().mean())
    changes = (x()[:, 1:] - x()[:, :-1]).square().mean()
    torch.testing.assert_close(penalty(ActivationPenaltyConfig(change=3.0), Context()), 3 * changes)
    torch.testing.assert_close(
        penalty(ActivationPenaltyConfig(size=2.0, change=3.0), Context()), 2 * x().square().mean() + 3 * changes
    )


def test_changes_between_documents_and_padding_cost_nothing() -> None:
    documents, new = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]), torch.tensor([5, 3])
    steps = (x()[:, 1:] - x()[:, :-1]).square().mean(-1)
    want = torch.cat((steps[0, [0, 2, 3]], steps[1, :2])).mean()
    torch.testing.assert_close(
        penalty(ActivationPenaltyConfig(change=1.0), Context(documents=documents, lengths=new)), want
    )
    squares = x().square().mean(-1)
    want = torch.cat((squares[0], squares[1, :3])).mean()
    torch.testing.assert_close(penalty(ActivationPenaltyConfig(size=1.0), Context(lengths=new)), want)


def test_full_rows_cost_the_same_in_one_batch_and_in_micro_batches() -> None:
    torch.manual_seed(0)
    model = build("awd_lstm", layers=1, width=8, vocab=11, context=6, dropout=0.0)
    for part in model.auxiliary:
        part.size, part.change = 2.0, 1.0
    ids = torch.randint(11, (4, 7))
    batch = Batch(ids[:, :-1], ids[:, 1:], torch.ones(4, 6), torch.arange(4))
    objective = NextTokenConfig()
    whole = objective(model, batch).total
    pieces = sum(objective(model, batch.slice(i, i + 2)).total for i in (0, 2))
    torch.testing.assert_close(whole, pieces)
    bare = model.head.nll(model(batch.inputs), batch.targets).sum()
    assert whole > bare + 1e-3


def test_a_negative_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match="change: want at least 0"):
        ActivationPenaltyConfig(change=-1.0)
