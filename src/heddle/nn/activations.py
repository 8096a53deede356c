"""Activations: name -> function, every one that Narang et al. (2021) compare and the square of So et al. (2021)."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError, nearest

Activation = Callable[[Tensor], Tensor]


def _linear(x: Tensor) -> Tensor:
    return x


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "relu_squared": _relu_squared,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "swish": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": F.sigmoid,
    "softplus": F.softplus,
    "tanh": F.tanh,
    "linear": _linear,
}


def activation(name: str) -> Activation:
    """Return the function of a name."""
    if name not in ACTIVATIONS:
        raise ConfigError(
            "activation", want=f"one of {', '.join(ACTIVATIONS)}", got=name, near=nearest(name, ACTIVATIONS)
        )
    return ACTIVATIONS[name]
