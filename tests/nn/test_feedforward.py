"""Feed-forward channels and embeddings equal their formulas and refuse sizes that cannot be."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn.base import Context, Place
from heddle.nn.channels import FeedForwardConfig, FeedForwardFamily, FixupFeedForwardConfig, GatedFeedForwardConfig
from heddle.nn.ends import FullEmbeddingConfig
from heddle.nn.layers import ACTIVATIONS, ElementDropoutConfig, activation


def build(config: FeedForwardFamily, width: int = 6) -> torch.nn.Module:
    torch.manual_seed(0)
    made = config.build(width, Place())
    for weight in made.parameters():
        torch.nn.init.normal_(weight)
    return made.double()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_plain_feed_forward_equals_its_formula(name: str) -> None:
    made, x = build(FeedForwardConfig(hidden=9, activation=name, bias=True)), torch.randn(2, 3, 6).double()
    up = x @ made.up.weight.T + made.up.bias
    want = activation(name)(up) @ made.down.weight.T + made.down.bias
    torch.testing.assert_close(made(x, Context()), want)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_feed_forward_equals_its_formula(name: str) -> None:
    made, x = build(GatedFeedForwardConfig(hidden=9, activation=name)), torch.randn(2, 3, 6).double()
    want = (activation(name)(x @ made.gate.weight.T) * (x @ made.up.weight.T)) @ made.down.weight.T
    torch.testing.assert_close(made(x, Context()), want)


def test_fixup_shifts_between_bending_and_narrowing() -> None:
    made, x = build(FixupFeedForwardConfig(hidden=9)), torch.randn(2, 3, 6).double()
    assert sum(p.numel() for p in made.parameters()) == 2 * 6 * 9 + 1
    want = ((x @ made.up.weight.T).relu() + made.shift) @ made.down.weight.T
    torch.testing.assert_close(made(x, Context()), want)


def test_default_sizes_have_about_as_many_weights() -> None:
    plain, gated = (
        sum(p.numel() for p in build(c, width=768).parameters())
        for c in (FeedForwardConfig(), GatedFeedForwardConfig())
    )
    assert plain == 8 * 768**2
    assert gated == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("cls", [FeedForwardConfig, GatedFeedForwardConfig])
def test_no_hidden_units_are_refused(cls: type[FeedForwardConfig]) -> None:
    with pytest.raises(ConfigError, match="hidden: want at least 1, got 0"):
        cls(hidden=0)


def test_embedding_looks_up_and_scales() -> None:
    table = FullEmbeddingConfig(scale=3.0).build(5, 4, Place())
    torch.nn.init.normal_(table.weight)
    ids = torch.tensor([[0, 4, 4]])
    torch.testing.assert_close(table(ids, Context()), 3 * table.weight[ids])


def test_embedding_drops_in_training_only() -> None:
    table = FullEmbeddingConfig(dropout=ElementDropoutConfig(rate=0.5)).build(5, 64, Place())
    torch.nn.init.ones_(table.weight)
    ids = torch.tensor([[0, 1, 2]])
    assert (table(ids, Context()) == 0).any()
    assert (table.eval()(ids, Context()) == 1).all()


def test_a_dropout_that_is_no_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="dropout: want at least 0 and below 1"):
        ElementDropoutConfig(rate=1.5)
