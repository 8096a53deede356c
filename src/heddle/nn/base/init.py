"""Weight initialization by role and depth; each parameter has its own random stream, keyed by its name."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Container
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heddle.core import Config, ConfigError, Purpose, generator, part
from heddle.nn.base.part import InitialValues, Module, Role


@dataclass(frozen=True)
class WeightInfo:
    """What an initializer knows about a weight."""

    role: Role
    slot: str  # of its branch: mixer, cross or channel; empty outside branches
    fan_in: int
    depth: int  # of the whole model
    fan_out: int = 1


class InitConfig(Config, ABC):
    """How matrices and tables are initialized; gains begin at one and biases at zero, unless their part differs."""

    @abstractmethod
    def values_for(self, info: WeightInfo) -> InitialValues:
        """Return the initial values of a matrix or a table."""


@part("normal")
class NormalInitConfig(InitConfig):
    """GPT-2 (Radford et al. 2019): one standard deviation; matrices into the stream shrink with 1 / sqrt(2 * depth).

    deviation_all: standard deviation of all weights.
    shrink_into_stream: whether matrices into the stream shrink with depth.
    """

    deviation_all: float = 0.02
    shrink_into_stream: bool = True

    def values_for(self, info: WeightInfo) -> InitialValues:
        shrinks = info.role is Role.INTO_STREAM and self.shrink_into_stream
        return InitialValues(scale=self.deviation_all / (math.sqrt(2 * info.depth) if shrinks else 1))


@part("fan_in")
class FanInInitConfig(InitConfig):
    """Normal, with deviation 1 / sqrt(inputs); matrices into the stream begin at zero, so blocks begin as identity.

    embedding: standard deviation of embeddings.
    into_stream: deviation of matrices into the stream, times 1 / sqrt(inputs).
    """

    embedding: float = 0.02
    into_stream: float = 0.0

    def values_for(self, info: WeightInfo) -> InitialValues:
        if info.role in (Role.EMBEDDING, Role.HEAD):
            return InitialValues(scale=self.embedding)
        gain = self.into_stream if info.role is Role.INTO_STREAM else 1.0
        return InitialValues(scale=gain / math.sqrt(info.fan_in))


@part("xavier")
class XavierInitConfig(InitConfig):
    """Xavier (Glorot & Bengio 2010): uniform, variance 2 / (inputs + outputs); rows of tables have length one.

    gain: factor of the deviation.
    """

    gain: float = 1.0

    def values_for(self, info: WeightInfo) -> InitialValues:
        if info.role in (Role.EMBEDDING, Role.HEAD):
            return InitialValues(scale=info.fan_in**-0.5)
        return InitialValues(scale=self.gain * math.sqrt(6 / (info.fan_in + info.fan_out)), distribution="uniform")


@part("narang")
class NarangInitConfig(InitConfig):
    """Narang et al. (2021): tables N(0, 1), attention normal, all else truncated normal, by inputs.

    gain: factor of the variance in channels and joins; 0.1 with experts.
    """

    gain: float = 1.0

    def values_for(self, info: WeightInfo) -> InitialValues:
        if info.role is Role.EMBEDDING:
            return InitialValues(scale=1.0)
        if info.slot in ("mixer", "cross"):
            return InitialValues(scale=info.fan_in**-0.5)
        gain = self.gain if info.slot else 1.0
        return InitialValues(scale=math.sqrt(gain / info.fan_in), distribution="truncated")


@part("fixup")
class FixupInitConfig(InitConfig):
    """Fixup (Zhang et al. 2019): matrices into the stream begin at zero, those before them shrink with depth.

    Cross-attention is initialized as without Fixup, as in Narang et al. (2021).

    branches: branches of the whole model; None: two for each layer.
    """

    branches: int | None = None

    def values_for(self, info: WeightInfo) -> InitialValues:
        if info.slot not in ("mixer", "channel"):
            return NarangInitConfig().values_for(info)
        if info.role is Role.INTO_STREAM:
            return InitialValues()
        branches = 2 * info.depth if self.branches is None else self.branches
        shrinks = branches ** (-1 / 3) if info.slot == "mixer" else 1 / branches
        return InitialValues(scale=math.sqrt(2 * shrinks / info.fan_in), distribution="truncated")


@part("uniform")
class UniformInitConfig(InitConfig):
    """Uniform within 1 / sqrt(inputs), and within one bound for tables: usual for recurrent models.

    embedding: bound of embeddings.
    """

    embedding: float = 0.1

    def values_for(self, info: WeightInfo) -> InitialValues:
        table = info.role in (Role.EMBEDDING, Role.HEAD)
        return InitialValues(scale=self.embedding if table else info.fan_in**-0.5, distribution="uniform")


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


def initialize(model: nn.Module, config: InitConfig, depth: int, seed: int, only: Container[str] | None = None) -> None:
    """Initialize every parameter, or only some by name, in place."""
    parameters, own = dict(model.named_parameters()), _declared_values(model)
    for name, role in roles_of(model).items():
        weight = parameters[name]
        if weight.is_meta or (only is not None and name not in only):
            continue
        values = own.get(name) or _scaled(model, name, _initial_values(config, _info(model, name, role, depth)))
        _fill(weight, values, generator(seed, Purpose.INIT, name))


def _info(model: nn.Module, name: str, role: Role, depth: int) -> WeightInfo:
    """Return what an initializer knows about a weight: inputs are its last dimension, outputs the one before."""
    *_, fan_out, fan_in = (1, *model.get_parameter(name).shape)
    return WeightInfo(role, _slot_of(model, name), fan_in, depth, fan_out)


def _initial_values(config: InitConfig, info: WeightInfo) -> InitialValues:
    if info.role is Role.GAIN:
        return InitialValues(mean=1.0)
    return InitialValues() if info.role in (Role.BIAS, Role.ROUTER_BIAS) else config.values_for(info)


def _scaled(model: nn.Module, name: str, values: InitialValues) -> InitialValues:
    owner = model.get_submodule(name.rpartition(".")[0])
    return dataclasses.replace(values, scale=values.scale * owner.init_scale) if isinstance(owner, Module) else values


def _declared_values(model: nn.Module) -> dict[str, InitialValues]:
    found: dict[str, InitialValues] = {}
    for path, module in model.named_modules():
        if isinstance(module, Module):
            found |= {f"{path}.{name}" if path else name: values for name, values in module.initial_values.items()}
    return found


def _slot_of(model: nn.Module, name: str) -> str:
    """Return the slot of the innermost branch around a parameter."""
    words = name.split(".")
    for cut in range(len(words) - 1, 0, -1):
        outer = model.get_submodule(".".join(words[:cut]))
        if isinstance(outer, Module) and outer.slot:
            return outer.slot
    return ""


@torch.no_grad()
def _fill(weight: Tensor, values: InitialValues, draw: torch.Generator) -> None:
    if not values.scale:
        weight.fill_(values.mean)
        return
    numbers = torch.empty(weight.shape, device="cpu")  # on the CPU in float32: equal on every device
    if values.distribution == "uniform":
        numbers.uniform_(-1, 1, generator=draw)
    else:
        numbers.normal_(generator=draw)
    if values.distribution == "truncated":
        _redraw_tails(numbers, draw)
    weight.copy_(numbers * values.scale + values.mean)


def _redraw_tails(numbers: Tensor, draw: torch.Generator, limit: float = 2.0) -> None:
    """Redraw numbers beyond two deviations, and rescale to deviation one."""
    while bool((tails := numbers.abs() > limit).any()):
        numbers[tails] = torch.randn(int(tails.sum()), generator=draw, device="cpu")
    numbers /= 0.87962566103423978  # standard deviation of a normal truncated at two
