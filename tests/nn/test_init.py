"""Initial values: by role and depth, each from a random stream keyed by its name."""

import math

import pytest
import torch

from heddle.core import ConfigError, replace
from heddle.models.networks import LanguageModelConfig, pre_norm
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import (
    FanInInitConfig,
    FixupInitConfig,
    InitConfig,
    Module,
    NarangInitConfig,
    NormalInitConfig,
    Role,
    XavierInitConfig,
    initialize,
    roles_of,
)
from heddle.nn.channels import ExpertsConfig, FeedForwardConfig, GatedFeedForwardConfig
from heddle.nn.layers import LayerNormConfig
from heddle.nn.recurrent import LSTMConfig
from heddle.nn.stack import RepeatConfig

WIDTH = 128


def config(init: InitConfig, layers: int = 2) -> LanguageModelConfig:
    body = pre_norm(
        AttentionConfig(heads=4), FeedForwardConfig(bias=True), LSTMConfig(hidden=64), norm=LayerNormConfig()
    )
    plan = RepeatConfig(body=body, times=layers)
    return LanguageModelConfig(vocab=512, width=WIDTH, context=8, plan=plan, init=init)


def deviations(made: torch.nn.Module) -> dict[Role, set[float]]:
    found: dict[Role, set[float]] = {}
    weights = dict(made.named_parameters())
    for name, role in roles_of(made).items():
        found.setdefault(role, set()).add(round(weights[name].std().item(), 4))
    return found


@pytest.mark.parametrize("layers", [2, 8])
def test_normal_init_shrinks_what_enters_the_stream(layers: int) -> None:
    found = deviations(config(NormalInitConfig(), layers).build())
    for role in (Role.EMBEDDING, Role.HEAD, Role.INSIDE, Role.RECURRENT):
        assert all(d == pytest.approx(0.02, rel=0.05) for d in found[role])
    assert all(d == pytest.approx(0.02 / math.sqrt(2 * layers), rel=0.05) for d in found[Role.INTO_STREAM])


def test_shrinking_can_be_left_out() -> None:
    found = deviations(config(NormalInitConfig(shrink_into_stream=False)).build())
    assert all(d == pytest.approx(0.02, rel=0.05) for d in found[Role.INTO_STREAM])


def test_fan_in_keeps_variance_and_begins_blocks_as_nothing() -> None:
    made = config(FanInInitConfig()).build()
    weights, roles = dict(made.named_parameters()), roles_of(made)
    for name, role in roles.items():
        inputs = weights[name].shape[-1]
        if role in (Role.INSIDE, Role.RECURRENT):
            assert weights[name].std().item() == pytest.approx(1 / math.sqrt(inputs), rel=0.05), name
        elif role is Role.INTO_STREAM:
            assert weights[name].count_nonzero() == 0
        elif role in (Role.EMBEDDING, Role.HEAD):
            assert weights[name].std().item() == pytest.approx(0.02, rel=0.05)


def spread(made: torch.nn.Module, name: str) -> float:
    return made.get_parameter(name).std().item()


def test_xavier_takes_inputs_and_outputs_into_account() -> None:
    made = config(XavierInitConfig()).build()
    for name, fans in (("mixer.part.query", WIDTH + WIDTH), ("channel.part.up", WIDTH + 4 * WIDTH)):
        weight = made.get_parameter(f"stack.0.{name}.weight")
        assert weight.std().item() == pytest.approx(math.sqrt(2 / fans), rel=0.05)
        assert weight.abs().max().item() <= math.sqrt(6 / fans)
    assert spread(made, "embedding.weight") == pytest.approx(WIDTH**-0.5, rel=0.05)


def test_narang_begins_as_their_engine_did() -> None:
    made = config(NarangInitConfig(gain=0.1)).build()
    assert spread(made, "embedding.weight") == pytest.approx(1.0, rel=0.05)
    assert spread(made, "stack.0.mixer.part.output.weight") == pytest.approx(WIDTH**-0.5, rel=0.05)
    up, head = made.get_parameter("stack.0.channel.part.up.weight"), made.get_parameter("head.weight")
    for weight, variance in ((up, 0.1 / WIDTH), (head, 1 / WIDTH)):
        assert weight.var().item() == pytest.approx(variance, rel=0.05)
        assert weight.abs().max().item() <= 2.28 * math.sqrt(variance), "cut at two deviations, then widened"
    assert made.get_parameter("stack.0.mixer.part.query.weight").abs().max() > 2.5 * WIDTH**-0.5, "not cut"


def test_fixup_begins_branches_as_nothing_and_small_before() -> None:
    for branches, count in ((None, 4), (60, 60)):
        made = config(FixupInitConfig(branches=branches)).build()
        weights, roles = dict(made.named_parameters()), roles_of(made)
        assert all(weights[n].count_nonzero() == 0 for n, role in roles.items() if role is Role.INTO_STREAM)
        attention, channel = (spread(made, f"stack.1.{n}.weight") for n in ("mixer.part.key", "channel.part.up"))
        assert attention == pytest.approx(math.sqrt(2 * count ** (-1 / 3) / WIDTH), rel=0.05)
        assert channel == pytest.approx(math.sqrt(2 / (count * WIDTH)), rel=0.05)


def test_every_expert_begins_by_its_own_inputs() -> None:
    body = pre_norm(ExpertsConfig(experts=3, expert=FeedForwardConfig(hidden=96)), norm=LayerNormConfig())
    made = LanguageModelConfig(
        vocab=9, width=WIDTH, context=8, plan=body, init=FanInInitConfig(into_stream=1.0)
    ).build()
    up, down = (made.get_parameter(f"stack.channel.part.bank.{name}.weight") for name in ("up", "down"))
    for one in range(3):
        assert up[one].std().item() == pytest.approx(WIDTH**-0.5, rel=0.05)
        assert down[one].std().item() == pytest.approx(96**-0.5, rel=0.05)
    assert not torch.equal(up[0], up[1])


def test_gains_are_one_and_biases_zero() -> None:
    made = config(NormalInitConfig()).build()
    weights = dict(made.named_parameters())
    for name, role in roles_of(made).items():
        if role is Role.GAIN:
            assert (weights[name] == 1).all()
        if role is Role.BIAS:
            assert (weights[name] == 0).all()


def test_changing_one_part_moves_no_other() -> None:
    before = config(NormalInitConfig()).build().weights()
    body = pre_norm(AttentionConfig(heads=4), GatedFeedForwardConfig(), LSTMConfig(hidden=64), norm=LayerNormConfig())
    after = replace(config(NormalInitConfig()), plan=RepeatConfig(body=body, times=2)).build().weights()
    shared = before.keys() & after.keys()
    assert {n for n in before if n not in after or not torch.equal(before[n], after[n])} == {
        f"stack.{i}.channel.part.{rest}"
        for i in (0, 1)
        for rest in ("up.weight", "up.bias", "down.weight", "down.bias")
    }
    assert len(shared) > 20


def test_two_layers_do_not_begin_alike() -> None:
    weights = config(NormalInitConfig()).build().weights()
    assert not torch.equal(weights["stack.0.mixer.part.query.weight"], weights["stack.1.mixer.part.query.weight"])


def test_a_parameter_without_a_role_is_refused_by_name() -> None:
    class Nameless(Module):
        def __init__(self) -> None:
            super().__init__()
            self.stray = torch.nn.Parameter(torch.empty(3))

    with pytest.raises(ConfigError, match="stray: want a role"):
        initialize(Nameless(), NormalInitConfig(), depth=1, seed=0)


def test_numbers_do_not_depend_on_the_dtype() -> None:
    made = config(NormalInitConfig()).build()
    double = config(NormalInitConfig()).build().double()
    initialize(double, NormalInitConfig(), depth=2, seed=0)
    for name, weight in made.named_parameters():
        torch.testing.assert_close(double.get_parameter(name).float(), weight)
