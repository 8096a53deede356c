"""Initialisation by role and depth; each parameter draws from a key of its own name, so one change moves no other."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from heddle.core import Config, ConfigError, Purpose, generator, part
from heddle.nn.part import Module, Role


class InitConfig(Config, ABC):
    """How weights begin."""

    @abstractmethod
    def deviation(self, role: Role, fan_in: int, depth: int) -> float:
        """Return the standard deviation of a matrix of this role, in a model this deep."""


@part("normal")
class NormalInitConfig(InitConfig):
    """Normal numbers of one size; what enters the stream is smaller the deeper the model (Radford et al. 2019)."""

    deviation_all: float = 0.02
    shrink_into_stream: bool = True

    def deviation(self, role: Role, fan_in: int, depth: int) -> float:
        if role is Role.INTO_STREAM and self.shrink_into_stream:
            return self.deviation_all / math.sqrt(2 * depth)
        return self.deviation_all


@part("fan_in")
class FanInInitConfig(InitConfig):
    """Normal numbers that keep variance, 1 / sqrt(inputs); zero into the stream: each block begins as nothing."""

    embedding: float = 0.02
    into_stream: float = 0.0  # times 1 / sqrt(inputs)

    def deviation(self, role: Role, fan_in: int, depth: int) -> float:
        if role in (Role.EMBEDDING, Role.HEAD):
            return self.embedding
        gain = self.into_stream if role is Role.INTO_STREAM else 1.0
        return gain / math.sqrt(fan_in)


def roles_of(model: nn.Module) -> dict[str, Role]:
    """Return every parameter's role by its name; a tied parameter has the role of its first name."""
    roles: dict[str, Role] = {}
    for path, module in model.named_modules():
        if isinstance(module, Module):
            roles |= {f"{path}.{name}" if path else name: role for name, role in module.roles.items()}
    names = [name for name, _ in model.named_parameters()]
    for name in names:
        if name not in roles:
            raise ConfigError(name, want="a role, declared by the module that owns it", got="none")
    return {name: roles[name] for name in names}


def initialise(model: nn.Module, config: InitConfig, depth: int, seed: int) -> None:
    """Fill every parameter, in place."""
    parameters = dict(model.named_parameters())
    for name, role in roles_of(model).items():
        _fill(parameters[name], role, config, depth, generator(seed, Purpose.INIT, name))


@torch.no_grad()
def _fill(weight: Tensor, role: Role, config: InitConfig, depth: int, draw: torch.Generator) -> None:
    if weight.is_meta:
        return
    if role is Role.GAIN:
        weight.fill_(1)
    elif role is Role.BIAS:
        weight.zero_()
    else:  # drawn on the CPU in float32: the same on every device
        numbers = torch.randn(weight.shape, generator=draw)
        weight.copy_(numbers * config.deviation(role, weight.shape[-1], depth))
