"""Pooling: one vector for a row, in which padding has no say."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn.base import Context
from heddle.nn.outputs import (
    DenseFirstTokenConfig,
    DenseLastTokenConfig,
    FirstTokenConfig,
    LastTokenConfig,
    MeanConfig,
    PoolingConfig,
)

LENGTHS = torch.tensor([4, 2, 1])


def stream() -> torch.Tensor:
    return torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("config", "of_row"),
    [
        (FirstTokenConfig(), lambda row: row[0]),
        (LastTokenConfig(), lambda row: row[-1]),
        (MeanConfig(), lambda row: row.mean(0)),
    ],
    ids=["first", "last", "mean"],
)
def test_a_padded_row_is_pooled_as_the_bare_one(config: PoolingConfig, of_row: object) -> None:
    pool, x = config.build(5), stream()
    got = pool(x, Context(lengths=LENGTHS))
    for row, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(got[row], of_row(x[row, :length]))  # type: ignore[operator]
    torch.testing.assert_close(pool(x, Context()), pool(x, Context(lengths=torch.full((3,), 4))))


def test_the_pooler_of_bert_is_dense_and_tanh() -> None:
    pool, x = DenseFirstTokenConfig().build(5).double(), stream()
    for weight in pool.parameters():
        torch.nn.init.normal_(weight)
    torch.testing.assert_close(pool(x, Context()), torch.tanh(x[:, 0] @ pool.dense.weight.T + pool.dense.bias))


def test_the_pooler_of_bart_reads_the_last_real_token() -> None:
    pool, x = DenseLastTokenConfig().build(5).double(), stream()
    last = x[torch.arange(len(x)), LENGTHS - 1]
    want = torch.tanh(last @ pool.dense.weight.T + pool.dense.bias)
    torch.testing.assert_close(pool(x, Context(lengths=LENGTHS)), want)


def test_a_pooler_may_bend_otherwise_and_drop_before_its_dense_layer() -> None:
    pool, x = DenseFirstTokenConfig(activation="relu", dropout=0.5).build(5).double(), stream()
    for weight in pool.parameters():
        torch.nn.init.normal_(weight)
    torch.testing.assert_close(pool.eval()(x, Context()), torch.relu(x[:, 0] @ pool.dense.weight.T + pool.dense.bias))
    pool.dense.bias.data.zero_()
    pool.dropout.p = 1.0
    assert not pool.train()(x, Context()).any()
    with pytest.raises(ConfigError, match="activation: want one of"):
        DenseFirstTokenConfig(activation="gulu")


def test_half_precision_stays_half() -> None:
    for config in (FirstTokenConfig(), LastTokenConfig(), MeanConfig()):
        assert config.build(5)(stream().bfloat16(), Context(lengths=LENGTHS)).dtype == torch.bfloat16
