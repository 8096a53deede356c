"""Branched attention against its formula written out, its shares, and the counts of Narang et al."""

import dataclasses

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.models.networks import LanguageModelConfig
from heddle.nn.attention import (
    AttentionConfig,
    BranchedAttentionConfig,
    BranchedCrossAttentionConfig,
    BranchWeightsConfig,
    ClippedBranchWeightsConfig,
    CrossAttentionConfig,
    ProjectionsConfig,
    SoftmaxBranchWeightsConfig,
)
from heddle.nn.base import Context, FanInInitConfig, Part, PartConfig, Place
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.stack import BlockConfig, BranchConfig
from heddle.nn.state import Memory

WIDTH, HEADS, LENGTH, SOURCE = 8, 4, 6, 5
CHANNEL = FeedForwardConfig(hidden=12, bias=True)
SELF = BranchedAttentionConfig(attention=AttentionConfig(heads=HEADS), channel=CHANNEL)
CROSS = BranchedCrossAttentionConfig(attention=CrossAttentionConfig(heads=HEADS), channel=CHANNEL)


def made(config: PartConfig) -> Part:
    torch.manual_seed(0)
    module = config.build(WIDTH, Place(memory=WIDTH)).double()
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.6)
    return module


def x(length: int = LENGTH, seed: int = 3) -> Tensor:
    return torch.randn(2, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def written_out(module: Part, asking: Tensor, answering: Tensor, causal: bool) -> Tensor:
    """Take one head after the other through scores, its slice of the output map, and the feed-forward."""
    w = {name: p for name, p in module.named_parameters()}
    kappa, alpha = w["output.kappa.weight"].softmax(0), w["output.alpha.weight"].softmax(0)
    each, total = WIDTH // HEADS, torch.zeros_like(asking)
    for h in range(HEADS):
        own = slice(h * each, (h + 1) * each)
        query = asking @ w["query.weight"][own].T
        key, value = answering @ w["key.weight"][own].T, answering @ w["value.weight"][own].T
        scores = query @ key.mT / each**0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        branch = kappa[h] * (scores.softmax(-1) @ value @ w["output.weight"][:, own].T)
        bent = (branch @ w["output.channel.up.weight"].T + w["output.channel.up.bias"]).relu()
        total = total + alpha[h] * (bent @ w["output.channel.down.weight"].T + w["output.channel.down.bias"])
    return total


@torch.no_grad()
def test_branched_self_attention_is_its_formula() -> None:
    module = made(SELF)
    torch.testing.assert_close(module(x(), Context()), written_out(module, x(), x(), True), rtol=0, atol=1e-12)


@torch.no_grad()
def test_branched_cross_attention_is_its_formula() -> None:
    module, source = made(CROSS), x(SOURCE, seed=5)
    got = module(x(), Context(memory=Memory((source,))))
    torch.testing.assert_close(got, written_out(module, x(), source, False), rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", [SoftmaxBranchWeightsConfig(), ClippedBranchWeightsConfig()])
def test_shares_are_positive_and_add_up_to_one(config: BranchWeightsConfig) -> None:
    shares = config.build(5)
    torch.nn.init.normal_(shares.weight)
    assert (shares() > 0).all()
    torch.testing.assert_close(shares().sum(), torch.tensor(1.0))


@torch.no_grad()
def test_clipped_shares_are_those_that_the_original_projects_to() -> None:
    shares = ClippedBranchWeightsConfig().build(3)
    shares.weight.copy_(torch.tensor([0.6, -0.5, 0.2]))
    torch.testing.assert_close(shares(), torch.tensor([0.6001, 0.0001, 0.2001]) / 0.8003)


def test_first_shares_are_equal_or_uniform_between_zero_and_one() -> None:
    for shares, low, high in ((SoftmaxBranchWeightsConfig(), 0.0, 0.0), (ClippedBranchWeightsConfig(), 0.0, 1.0)):
        block = BlockConfig(branches=(BranchConfig(part=dataclasses.replace(SELF, shares=shares)),))
        model = LanguageModelConfig(vocab=9, width=WIDTH, context=9, plan=block).build()
        found = model.get_parameter("stack.mixer.part.output.kappa.weight")
        assert low <= found.min() <= found.max() <= high
        assert (found.std() > 0.05) == (high > 0)


def test_positions_reach_the_attention_inside() -> None:
    block = BlockConfig(branches=(BranchConfig(part=SELF),))
    loud = FanInInitConfig(embedding=1.0, into_stream=1.0)
    plain = LanguageModelConfig(vocab=9, width=WIDTH, context=9, plan=block, init=loud)
    turned = dataclasses.replace(plain, position=RotaryPositionConfig())
    rows = torch.tensor([[1, 2, 3, 4]])
    model, other = plain.build(), turned.build()
    other.load_weights(model.weights())
    assert not torch.allclose(model(rows), other(rows))


def test_counts_are_those_of_narang() -> None:
    attention, cross = AttentionConfig(heads=12), CrossAttentionConfig(heads=12)
    channel = FeedForwardConfig(hidden=3072, bias=True)
    configs: tuple[PartConfig, ...] = (
        BranchedAttentionConfig(attention=attention, channel=channel),
        BranchedCrossAttentionConfig(attention=cross, channel=channel, shares=ClippedBranchWeightsConfig()),
    )
    for config in configs:
        with torch.device("meta"):
            found = sum(p.numel() for p in config.build(768, Place(memory=768)).parameters())
        assert found == 4 * 768 * 768 + 2 * 768 * 3072 + 3840 + 24


def test_the_channel_is_counted_once_for_each_head() -> None:
    output = made(SELF).get_submodule("output")
    assert output.repeats == HEADS
    assert output.mixing_flops(LENGTH) == 4 * HEADS * WIDTH


def test_an_output_bias_is_refused() -> None:
    biased = AttentionConfig(heads=HEADS, projections=ProjectionsConfig(output_bias=True))
    with pytest.raises(ConfigError, match="output_bias: want false"):
        BranchedAttentionConfig(attention=biased)


def test_half_precision_streams_stay_so() -> None:
    module = made(SELF).float()
    y = module(x().bfloat16(), Context())
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y.float(), module(x().float(), Context()), rtol=0.1, atol=0.1)
