"""Optimizers: who gets which parameter, what is skipped, and state that is saved by name."""

import subprocess
import sys

import pytest
import torch
from laws.cases import SMALL, small_preset
from torch import nn
from torch.optim import AdamW

from heddle.core import ConfigError, DamageError
from heddle.models.networks import Model
from heddle.models.presets import PRESETS
from heddle.nn.base import Role, roles_of
from heddle.training.optimizers import AdafactorConfig, AdamWConfig, Muon, MuonConfig, OptimizerConfig, SGDConfig
from heddle.training.optimizers.muon import orthogonal

GOOD, BAD = torch.tensor(False), torch.tensor(True)
DESCENT = SGDConfig(learning_rate=0.1), SGDConfig(learning_rate=0.1, momentum=0.9)
CONFIGS = [AdamWConfig(), AdafactorConfig(), MuonConfig(), *DESCENT]


def model_of(name: str) -> Model:
    """Build a small model of a preset function."""
    return small_preset(next(named for named in PRESETS.values() if named.make.__name__ == name)).build()


def fill(model: Model, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=draw)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: str(c.kind))
def test_every_parameter_belongs_to_exactly_one_group(config: OptimizerConfig, name: str) -> None:
    model = model_of(name)
    given = [p for group in config.build(model).groups() for p in group["params"]]
    assert len(given) == len({id(p) for p in given}) == len(list(model.parameters()))


@pytest.mark.parametrize("name", SMALL)
def test_adamw_decays_matrices_and_leaves_gains_and_biases(name: str) -> None:
    model = model_of(name)
    optimizers, roles = AdamWConfig(weight_decay=0.3).build(model), roles_of(model)
    for group in optimizers.groups():
        for parameter in group["params"]:
            plain = roles[optimizers.names[parameter]] in (Role.GAIN, Role.BIAS)
            assert group["weight_decay"] == (0.0 if plain else 0.3)
    assert all(one.defaults["fused"] for one in optimizers.optimizers)


@pytest.mark.parametrize("name", SMALL)
def test_muon_gets_the_matrices_inside_the_stack_and_nothing_else(name: str) -> None:
    model = model_of(name)
    muon, adam = MuonConfig().build(model).optimizers
    assert isinstance(muon, Muon) and isinstance(adam, AdamW)
    names = {id(p): n for n, p in model.named_parameters()}
    given = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    inside = {Role.INSIDE, Role.INTO_STREAM, Role.RECURRENT}
    assert given == {n for n, r in roles_of(model).items() if r in inside and model.get_parameter(n).dim() == 2}
    stem = {n for n in given if n.startswith("encoder.embedding.")}  # convolutions and a projection are no table
    assert not any("embedding" in n or "head" in n or "norm" in n for n in given - stem)
    assert not stem or model.reads != "ids"


def test_a_bad_step_moves_neither_weights_nor_state() -> None:
    for config in CONFIGS:
        model = model_of("gpt2")
        optimizers = config.build(model)
        fill(model, 0)
        optimizers.step(GOOD)
        before = {n: t.clone() for n, t in (model.weights() | optimizers.tensors()).items()}
        fill(model, 1)
        optimizers.step(BAD)
        after = model.weights() | optimizers.tensors()
        assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: str(c.kind))
def test_state_saved_by_name_goes_on_in_the_same_bits(config: OptimizerConfig) -> None:
    first, second = model_of("gpt2"), model_of("gpt2")
    ours, theirs = config.build(first), config.build(second)
    for step in range(3):
        fill(first, step)
        ours.step(GOOD)
    second.load_weights(first.weights())
    theirs.load({name: tensor.clone() for name, tensor in ours.tensors().items()})
    for step in range(3, 6):
        for model, optimizers in ((first, ours), (second, theirs)):
            fill(model, step)
            optimizers.step(GOOD)
    assert all(torch.equal(first.weights()[n], w) for n, w in second.weights().items())
    assert all(torch.equal(ours.tensors()[n], t) for n, t in theirs.tensors().items())


def test_loaded_state_does_not_share_memory_with_its_source() -> None:
    model = model_of("gpt2")
    optimizers = AdamWConfig().build(model)
    fill(model, 0)
    optimizers.step(GOOD)
    saved = {name: tensor.clone() for name, tensor in optimizers.tensors().items()}
    optimizers.load(saved)
    fill(model, 1)
    optimizers.step(GOOD)
    assert not any(torch.equal(saved[n], t) for n, t in optimizers.tensors().items() if n.endswith("exp_avg"))


def test_state_of_another_optimizer_is_refused_by_name() -> None:
    model = model_of("gpt2")
    adam, muon = AdamWConfig().build(model), MuonConfig().build(model)
    fill(model, 0)
    adam.step(GOOD)
    muon.step(GOOD)
    for optimizers, state in ((adam, muon.tensors()), (muon, adam.tensors())):
        with pytest.raises(ConfigError, match=r"training\.optimizer: want the optimizer of the checkpoint"):
            optimizers.load(state)


def test_state_of_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(DamageError, match="which this model does not have"):
        AdamWConfig().build(model_of("gpt2")).load({"nowhere.weight/exp_avg": torch.zeros(2)})


def test_the_rate_is_a_factor_of_each_groups_own_peak() -> None:
    optimizers = MuonConfig(learning_rate=0.02, rest=AdamWConfig(learning_rate=0.004)).build(model_of("gpt2"))
    optimizers.set_learning_rate(0.5)
    assert {group["lr"] for group in optimizers.groups()} == {0.01, 0.002}
    assert optimizers.learning_rate == 0.01
    optimizers.set_learning_rate(1.0)
    assert {group["lr"] for group in optimizers.groups()} == {0.02, 0.004}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_descent_follows_its_formula_with_decay_of_matrices_only(momentum: float) -> None:
    model = model_of("lstm_lm")
    optimizers, roles = SGDConfig(learning_rate=0.1, momentum=momentum, weight_decay=0.01).build(model), roles_of(model)
    wanted = {n: w.double().clone() for n, w in model.weights().items()}
    speed = {n: torch.zeros_like(w) for n, w in wanted.items()}
    for step in range(3):
        fill(model, step)
        for name, weight in wanted.items():
            gradient = model.get_parameter(name).grad
            assert gradient is not None
            decay = 0.0 if roles[name] in (Role.GAIN, Role.BIAS) else 0.01
            speed[name] = momentum * speed[name] + gradient.double() + decay * weight
            wanted[name] = weight - 0.1 * speed[name]
        optimizers.step(GOOD)
    assert all(torch.allclose(wanted[n], w.double(), atol=1e-5) for n, w in model.weights().items())


@pytest.mark.parametrize(("field", "value"), [("learning_rate", -1.0), ("momentum", 1.0), ("weight_decay", -0.1)])
def test_nonsense_for_descent_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        SGDConfig(**{field: value})


SHAPES = [(48, 16), (48, 16), (16, 48), (24, 24), (24, 24), (24, 24)]  # tall, wide, square


def matrices() -> list[nn.Parameter]:
    """Draw some matrices of several shapes."""
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]


def push(weights: list[nn.Parameter], seed: int) -> None:
    """Draw gradients."""
    draw = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=draw)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_muon_is_torchs_muon_up_to_rounding(decay: float) -> None:
    ours, theirs = matrices(), matrices()
    batched = Muon(ours, rate=0.02, momentum=0.9, decay=decay, dtype=torch.bfloat16)
    one_by_one = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=decay)
    for step in range(4):
        for optimizer, weights in ((batched, ours), (one_by_one, theirs)):
            push(weights, step)
            optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, atol=1e-3)
        assert torch.equal(batched.state[mine]["momentum_buffer"], one_by_one.state[other]["momentum_buffer"])


@pytest.mark.parametrize(
    ("compute", "least", "most"), [(None, 0, 1e-5), (torch.float64, 0, 1e-6), (torch.bfloat16, 1e-4, 0.05)]
)
def test_muon_multiplies_in_the_dtype_of_the_run(compute: torch.dtype | None, least: float, most: float) -> None:
    model = model_of("gpt2")
    model.compute = compute
    muon = MuonConfig(learning_rate=1.0, momentum=0.0).build(model).optimizers[0]
    assert isinstance(muon, Muon)
    weight = next(p for p in muon.param_groups[0]["params"] if p.shape[0] == p.shape[1])
    before, draw = weight.detach().clone(), torch.Generator().manual_seed(0)
    weight.grad = torch.randn(weight.shape, generator=draw)
    muon.step()
    apart = float((before - weight - orthogonal(weight.grad[None].double())[0]).detach().abs().max())
    assert least < apart < most


def test_muon_moves_along_singular_vectors_by_near_equal_lengths() -> None:
    draw = torch.Generator().manual_seed(0)
    found = orthogonal(torch.randn(3, 32, 64, generator=draw)).float()
    assert found.shape == (3, 32, 64)
    lengths = torch.linalg.svdvals(found)
    assert float(lengths.min()) > 0.5 and float(lengths.max()) < 1.4


def test_muon_leaves_a_matrix_without_a_gradient_where_it_is() -> None:
    weights = matrices()
    push(weights, 0)
    weights[1].grad, still = None, weights[1].detach().clone()
    optimizer = Muon(weights, rate=0.1, momentum=0.9, decay=0.1)
    optimizer.step()
    assert torch.equal(weights[1], still) and weights[1] not in optimizer.state
    assert not torch.equal(weights[0], matrices()[0])


@pytest.mark.parametrize("gradient", [float("nan"), float("inf"), 1e30])
def test_muon_told_on_the_device_that_a_step_is_bad_changes_no_bit(gradient: float) -> None:
    weights = matrices()
    optimizer = Muon(weights, rate=0.1, momentum=0.9, decay=0.1)
    optimizer.found_inf = torch.zeros(())
    push(weights, 0)
    optimizer.step()
    kept = [*weights, *(optimizer.state[w]["momentum_buffer"] for w in weights)]
    before = [tensor.detach().clone() for tensor in kept]
    for weight in weights:
        weight.grad = torch.full_like(weight, gradient)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(torch.equal(was, now) for was, now in zip(before, kept, strict=True))
    optimizer.found_inf = torch.zeros(())
    push(weights, 1)
    optimizer.step()
    assert all(torch.isfinite(weight).all() for weight in weights)


def test_muon_told_that_a_step_is_good_moves_as_if_nobody_had_asked() -> None:
    told, untold = matrices(), matrices()
    first, second = Muon(told, rate=0.1, momentum=0.9, decay=0.1), Muon(untold, rate=0.1, momentum=0.9, decay=0.1)
    first.found_inf = torch.zeros(())
    for optimizer, weights in ((first, told), (second, untold)):
        push(weights, 0)
        optimizer.step()
    assert all(torch.allclose(mine, other, atol=1e-6) for mine, other in zip(told, untold, strict=True))


def test_muon_keeps_momentum_of_one_shape_in_one_piece_that_a_loaded_state_makes_anew() -> None:
    weights = matrices()
    optimizer = Muon(weights, rate=0.1, momentum=0.9, decay=0.0)
    push(weights, 0)
    optimizer.step()
    same = [w for w in weights if w.shape == weights[0].shape]
    kept = [optimizer.state[w]["momentum_buffer"] for w in same]
    assert len(same) > 1 and len({tensor.untyped_storage().data_ptr() for tensor in kept}) == 1
    for weight, tensor in zip(same, kept, strict=True):
        optimizer.state[weight]["momentum_buffer"] = torch.full_like(tensor, 3.0)
        weight.grad = torch.full_like(weight, 13.0)
    optimizer.step()
    assert all(torch.allclose(optimizer.state[w]["momentum_buffer"], torch.tensor(4.0)) for w in same)


COMPILED = """
import torch
from heddle.training.optimizers import Muon

def moved(compiled):
    draw = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(s, generator=draw)) for s in ((32, 32), (32, 32), (64, 32), (32, 64))]
    optimizer = Muon(weights, rate=0.02, momentum=0.9, decay=0.1, dtype=torch.bfloat16)
    if compiled:
        optimizer.compile()
    for step in range(6):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=draw)
        bad = step == 3
        if bad:
            weights[0].grad[0, 0] = float("nan")
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(float(bad)), torch.tensor(2.0)
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 6)
        before = [weight.detach().clone() for weight in weights]
        optimizer.step()
        assert bad == all(torch.equal(was, now) for was, now in zip(before, weights))
    return weights

for one, other in zip(moved(True), moved(False)):
    torch.testing.assert_close(one, other, atol=2e-3, rtol=0)  # it multiplies in bfloat16
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3, "one for each shape, whatever the rate"
"""


@pytest.mark.full
def test_muon_compiled_moves_as_it_does_uncompiled() -> None:
    command = [sys.executable, "-c", COMPILED]  # apart: the shape checks of tests cannot be traced
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
