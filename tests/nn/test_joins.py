"""Joins equal their formulas and begin where their papers say."""

import pytest
import torch
from torch import Tensor

from heddle.core import Config
from heddle.models.networks import LanguageModelConfig, pre_norm
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Place
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.layers import LayerNormConfig
from heddle.nn.stack import (
    GatedConfig,
    HighwayConfig,
    JoinConfig,
    LayerScaleConfig,
    NarangGateConfig,
    NormedConfig,
    RepeatConfig,
    ReplaceConfig,
    ResidualConfig,
    ReZeroConfig,
    ScaledConfig,
)
from heddle.nn.stack.block import GatedJoin, Join

WIDTH = 6


def build(config: JoinConfig) -> Join:
    made = config.build(WIDTH, Place())
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw))
    return made.double()


def pair() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(2, 3, WIDTH, dtype=torch.float64, generator=draw) for _ in range(2))
    return x, y


def dense(made: GatedJoin, name: str, left: Tensor, right: Tensor) -> Tensor:
    map_ = made.get_submodule(name)
    return torch.cat((left, right), -1) @ map_.weight.T + map_.bias


def test_plain_joins() -> None:
    x, y = pair()
    torch.testing.assert_close(build(ResidualConfig())(x, y), x + y)
    torch.testing.assert_close(build(ResidualConfig(factor=0.5))(x, y), x + y / 2)
    assert build(ReplaceConfig())(x, y) is y
    normed = build(NormedConfig())
    torch.testing.assert_close(normed(x, y), x + normed.norm(y))


@pytest.mark.parametrize("config", [ReZeroConfig(), ScaledConfig(), LayerScaleConfig()], ids=lambda c: c.kind)
def test_weighed_joins(config: JoinConfig) -> None:
    (x, y), made = pair(), build(config)
    torch.testing.assert_close(made(x, y), x + made.scale * y)
    assert made.scale.numel() == (WIDTH if isinstance(config, LayerScaleConfig) else 1)


def test_highway_chooses_between_stream_and_branch() -> None:
    (x, y), made = pair(), build(HighwayConfig())
    gate = (x @ made.carry.weight.T + made.carry.bias).sigmoid()
    torch.testing.assert_close(made(x, y), gate * y + (1 - gate) * x)


def test_the_gate_is_a_gru_of_both() -> None:
    (x, y), made = pair(), build(GatedConfig())
    norm = made.norm
    update = dense(made, "update", norm(x), norm(y)).sigmoid()
    reset = dense(made, "reset", norm(x), norm(y)).sigmoid()
    candidate = dense(made, "candidate", norm(reset * x), norm(y)).tanh()
    torch.testing.assert_close(made(x, y), (1 - update) * x + update * candidate)


def test_the_gate_of_narang_is_theirs_to_the_letter() -> None:
    (x, y), made = pair(), build(NarangGateConfig())
    norm = made.norm
    update = dense(made, "update", norm(x), norm(y)).sigmoid()
    reset = dense(made, "reset", norm(norm(x)), norm(norm(y))).sigmoid()
    candidate = dense(made, "candidate", norm(reset * x), norm(y)).sigmoid()
    torch.testing.assert_close(made(x, y), x + (1 - update) * y + update * candidate)
    assert sum(p.numel() for p in made.parameters()) == 3 * (2 * WIDTH * WIDTH + WIDTH) + 2 * WIDTH


def model(join: JoinConfig) -> dict[str, Tensor]:
    body = pre_norm(AttentionConfig(heads=2), FeedForwardConfig(), norm=LayerNormConfig(), join=join)
    made = LanguageModelConfig(vocab=9, width=WIDTH, context=8, plan=RepeatConfig(body=body, times=2)).build()
    return {name: w for name, w in made.weights().items() if ".join." in name}


@pytest.mark.parametrize(
    ("config", "name", "start"),
    [
        (ReZeroConfig(), "scale", 0.0),
        (ScaledConfig(), "scale", 1.0),
        (LayerScaleConfig(start=0.25), "scale", 0.25),
        (HighwayConfig(start=-3.0), "carry.bias", -3.0),
        (GatedConfig(), "update.bias", -2.0),
        (GatedConfig(), "reset.bias", 0.0),
    ],
)
def test_joins_begin_where_their_papers_say(config: Config, name: str, start: float) -> None:
    found = [w for path, w in model(config).items() if path.endswith(name)]
    assert len(found) == 4
    assert all((w == start).all() for w in found)
