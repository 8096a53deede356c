"""A sum gives one input to several parts, and each keeps its own slot of the state."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Context, Place
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.layers import LayerNormConfig, RMSNormConfig
from heddle.nn.recurrent import LSTMConfig
from heddle.nn.stack import SumConfig
from heddle.nn.state import State

PARTS = (AttentionConfig(heads=2), FeedForwardConfig(hidden=12), LSTMConfig(), AttentionConfig(heads=4))


def build() -> torch.nn.Module:
    made = SumConfig(parts=PARTS).build(8, Place(path="0.sum"))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape, generator=draw))
    return made.double()


def x() -> torch.Tensor:
    return torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_parts_are_named_and_added() -> None:
    made = build()
    assert [name for name, _ in made.named_children()] == ["mixer", "channel", "mixer_2", "mixer_3"]
    torch.testing.assert_close(made(x(), Context()), sum(part(x(), Context()) for part in made.children()))
    assert [part.slot for part in made.children()] == ["mixer", "channel", "mixer", "mixer"]


def test_slots_can_be_chosen_from_and_grown() -> None:
    made = build()
    state = State.empty(2, 3)
    allowed = (torch.arange(3)[:, None] >= torch.arange(3))[None, None].expand(2, 1, 3, 3)
    _, slot = made.step(x()[:, :3], Context(state=state, allowed=allowed), None)
    assert set(slot.slots) == {"mixer", "mixer_2", "mixer_3"}
    assert slot.resize(7).slots["mixer"].size == 7
    picked = slot.map(lambda t: t[1:])
    assert picked.slots["mixer_2"].vectors[0].shape[0] == 1


def test_each_part_may_see_the_input_through_a_norm_of_its_own() -> None:
    norms = (LayerNormConfig(), RMSNormConfig())
    made = SumConfig(parts=PARTS[:2], norms=norms).build(8, Place(path="0.sum")).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape, generator=draw))
    inner = dict(made.named_children())
    assert list(inner) == ["mixer", "channel", "mixer_norm", "channel_norm"]
    want = sum(inner[name](inner[f"{name}_norm"](x()), Context()) for name in ("mixer", "channel"))
    torch.testing.assert_close(made(x(), Context()), want)
    with pytest.raises(ConfigError, match="norms: want none, or one for each of 2 parts, got 1"):
        SumConfig(parts=PARTS[:2], norms=norms[:1])


def test_a_sum_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="parts: want at least two, got 1"):
        SumConfig(parts=(PARTS[0],))
