"""Activations equal their formulas, and an unknown name suggests the nearest."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from heddle.core import ConfigError
from heddle.nn.channels import FeedForwardConfig, GatedFeedForwardConfig
from heddle.nn.layers import ACTIVATIONS, activation

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

FORMULAS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "relu_squared": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "selu": lambda x: SELU_SCALE * (x if x > 0 else SELU_ALPHA * (math.exp(x) - 1)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "tanh": math.tanh,
    "linear": lambda x: x,
}

# What Narang et al. (2021) compare, as (activation, gated): GLU gates by a sigmoid, LiGLU by nothing.
NARANG = {
    "vanilla": ("relu", False),
    "gelu": ("gelu", False),
    "swish": ("swish", False),
    "elu": ("elu", False),
    "selu": ("selu", False),
    "sigmoid": ("sigmoid", False),
    "softplus": ("softplus", False),
    "glu": ("sigmoid", True),
    "geglu": ("gelu", True),
    "reglu": ("relu", True),
    "swiglu": ("swish", True),
    "liglu": ("linear", True),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_equals_its_formula(name: str) -> None:
    points = torch.linspace(-4, 4, 33, dtype=torch.float64)
    wanted = torch.tensor([FORMULAS[name](p) for p in points.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activation(name)(points), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("slug", NARANG)
def test_every_activation_of_narang_can_be_named(slug: str) -> None:
    name, gated = NARANG[slug]
    config = GatedFeedForwardConfig(activation=name) if gated else FeedForwardConfig(activation=name)
    assert config.activation in ACTIVATIONS


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"activation.*did you mean 'gelu'"):
        FeedForwardConfig(activation="gelo")


def test_gelu_written_for_a_compiler_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-12, 12, 1001, dtype=torch.float64, requires_grad=True)
    want = F.gelu(x, approximate="tanh")
    (slope,) = torch.autograd.grad(want.sum(), x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    got = activation("gelu_tanh")(x)
    assert torch.allclose(got, want, atol=1e-12)
    assert torch.allclose(torch.autograd.grad(got.sum(), x)[0], slope, atol=1e-12)
    assert activation("gelu_tanh")(x.bfloat16()).dtype is torch.bfloat16
