"""First values: by role and depth, each drawn from a key of its own name."""

import math

import pytest
import torch

from heddle.core import ConfigError, replace
from heddle.models import LanguageModelConfig, pre_norm
from heddle.nn import (
    AttentionConfig,
    FanInInitConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
    InitConfig,
    LayerNormConfig,
    LSTMConfig,
    Module,
    NormalInitConfig,
    RepeatConfig,
    Role,
    initialise,
    roles_of,
)

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
        initialise(Nameless(), NormalInitConfig(), depth=1, seed=0)


def test_numbers_do_not_depend_on_the_dtype() -> None:
    made = config(NormalInitConfig()).build()
    double = config(NormalInitConfig()).build().double()
    initialise(double, NormalInitConfig(), depth=2, seed=0)
    for name, weight in made.named_parameters():
        torch.testing.assert_close(double.get_parameter(name).float(), weight)
