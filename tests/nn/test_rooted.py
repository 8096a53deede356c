"""Rooted depth: each layer sees the stream and the entry by shares of its own, at first the stream alone."""

import pytest
import torch

from heddle.core import ConfigError, replace
from heddle.models.networks import pre_norm
from heddle.nn.base import Context, InitConfig, NormalInitConfig, Place, initialize
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.layers import RMSNormConfig
from heddle.nn.stack import RepeatConfig, RootedConfig

BODY = pre_norm(FeedForwardConfig(hidden=8), norm=RMSNormConfig())
INIT: InitConfig = NormalInitConfig()
PLAN = RootedConfig(body=BODY, times=3)
X = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))


def test_it_begins_as_plain_depth() -> None:
    rooted, plain = PLAN.build(4, Place()), RepeatConfig(body=BODY, times=3).build(4, Place())
    for model in (rooted, plain):
        initialize(model, INIT, depth=3, seed=0)
    assert torch.equal(rooted(X, Context())[0], plain(X, Context())[0])
    assert {name for name, _ in rooted.named_parameters()} - {name for name, _ in plain.named_parameters()} == {
        "keep",
        "root",
    }


def test_each_layer_mixes_the_stream_with_the_entry_by_its_own_shares() -> None:
    rooted = PLAN.build(4, Place())
    initialize(rooted, INIT, depth=3, seed=0)
    with torch.no_grad():
        rooted.get_parameter("keep").copy_(torch.tensor([1.0, 0.5, 2.0]))
        rooted.get_parameter("root").copy_(torch.tensor([0.25, -1.0, 3.0]))
    x = X
    for i, (keep, root) in enumerate(((1.0, 0.25), (0.5, -1.0), (2.0, 3.0))):
        x, _ = rooted.get_submodule(str(i))(keep * x + root * X, Context())
    assert torch.allclose(rooted(X, Context())[0], x, atol=1e-6)


def test_its_depth_is_that_of_all_layers_and_none_is_refused() -> None:
    assert replace(PLAN, body=RepeatConfig(body=BODY, times=2)).depth() == 6
    with pytest.raises(ConfigError, match="times"):
        RootedConfig(body=BODY, times=0)
