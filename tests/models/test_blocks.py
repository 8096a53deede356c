"""Norm placements are orderings of branches: each equals its equation."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heddle.models.networks import macaron, parallel, post_norm, pre_norm, sandwich
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Context, Place
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.layers import LayerNormConfig
from heddle.nn.stack import BlockConfig, Plan

MIXER, CHANNEL, NORM = AttentionConfig(heads=2), FeedForwardConfig(hidden=12), LayerNormConfig()


def build(config: BlockConfig) -> Plan:
    made = config.build(8, Place())
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw))
    return made.double()


def modules(made: Plan) -> dict[str, Callable[..., Tensor]]:
    ctx = Context()
    found: dict[str, Callable[..., Tensor]] = {}
    for name, branch in made.named_children():
        found[name] = lambda x, part=branch.part: part(x, ctx)
        found[f"{name} norm"] = branch.norm
        found |= (
            {f"{name} after": branch.join.norm} if name + ".join.norm.weight" in dict(made.named_parameters()) else {}
        )
    return found


def pre(x: Tensor, m: dict[str, Callable[..., Tensor]]) -> Tensor:
    x = x + m["mixer"](m["mixer norm"](x))
    return x + m["channel"](m["channel norm"](x))


def post(x: Tensor, m: dict[str, Callable[..., Tensor]]) -> Tensor:
    x = m["norm norm"](x + m["mixer"](x))
    return m["norm_2 norm"](x + m["channel"](x))


def between(x: Tensor, m: dict[str, Callable[..., Tensor]]) -> Tensor:
    x = x + m["mixer after"](m["mixer"](m["mixer norm"](x)))
    return x + m["channel after"](m["channel"](m["channel norm"](x)))


def beside(x: Tensor, m: dict[str, Callable[..., Tensor]]) -> Tensor:
    return x + m["sum"](m["sum norm"](x))


def halves(x: Tensor, m: dict[str, Callable[..., Tensor]]) -> Tensor:
    x = x + m["channel"](m["channel norm"](x)) / 2
    x = x + m["mixer"](m["mixer norm"](x))
    return x + m["channel_2"](m["channel_2 norm"](x)) / 2


@pytest.mark.parametrize(
    ("config", "equation"),
    [
        (pre_norm(MIXER, CHANNEL, norm=NORM), pre),
        (post_norm(MIXER, CHANNEL, norm=NORM), post),
        (sandwich(MIXER, CHANNEL, norm=NORM), between),
        (parallel(MIXER, CHANNEL, norm=NORM), beside),
        (macaron(MIXER, CHANNEL, norm=NORM), halves),
    ],
    ids=lambda v: v.__name__ if callable(v) else "block",
)
def test_a_placement_equals_its_equation(
    config: BlockConfig, equation: Callable[[Tensor, dict[str, Callable[..., Tensor]]], Tensor]
) -> None:
    made = build(config)
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(made(x, Context())[0], equation(x, modules(made)))
