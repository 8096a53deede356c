"""Activation functions by name: all that Narang et al. (2021) compare, and squared ReLU (So et al. 2021)."""

import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError

Activation = Callable[[Tensor], Tensor]


def _linear(x: Tensor) -> Tensor:
    return x


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gelu_tanh(x: Tensor) -> Tensor:
    """GELU by tanh: 0.5 * x * (1 + tanh(inner)) = x * sigmoid(2 * inner); compiled, tanh takes twice the time."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    y = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    inner = math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)
    return (y * torch.sigmoid(2 * inner)).to(x.dtype)


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "relu_squared": _relu_squared,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "swish": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": F.sigmoid,
    "softplus": F.softplus,
    "tanh": F.tanh,
    "linear": _linear,
}


def activation(name: str) -> Activation:
    """Return an activation function by name."""
    if name not in ACTIVATIONS:
        raise ConfigError.unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def _check_activation(**fields: str) -> None:
    for name in fields.values():
        activation(name)


ActivationName = Annotated[str, _check_activation]


def apply_softcap(scores: Tensor, softcap: float | None) -> Tensor:
    """Soft-cap scores: softcap * tanh(scores / softcap), where there is a cap (Gemma 2)."""
    return scores if softcap is None else (scores / softcap).tanh() * softcap
