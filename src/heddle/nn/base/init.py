"""Initialisation by role and depth; each parameter draws from a key of its own name, so one change moves no other."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heddle.core import Config, ConfigError, Purpose, generator, part
from heddle.nn.base.part import Module, Role, Start


@dataclass(frozen=True)
class About:
    """What an initialiser may know of a weight."""

    role: Role
    slot: str  # of the branch that it stands in: mixer, cross, channel; empty outside
    fan_in: int
    depth: int  # of the whole model
    fan_out: int = 1


class InitConfig(Config, ABC):
    """How weights begin; gains begin at one and biases at zero, unless their part says otherwise."""

    @abstractmethod
    def start(self, about: About) -> Start:
        """Return the first values of a matrix or a table."""


@part("normal")
class NormalInitConfig(InitConfig):
    """Normal numbers of one size; what enters the stream is smaller the deeper the model (Radford et al. 2019)."""

    deviation_all: float = 0.02
    shrink_into_stream: bool = True

    def start(self, about: About) -> Start:
        shrink = about.role is Role.INTO_STREAM and self.shrink_into_stream
        return Start(spread=self.deviation_all / (math.sqrt(2 * about.depth) if shrink else 1))


@part("fan_in")
class FanInInitConfig(InitConfig):
    """Normal numbers that keep variance, 1 / sqrt(inputs); zero into the stream: each block begins as nothing."""

    embedding: float = 0.02
    into_stream: float = 0.0  # times 1 / sqrt(inputs)

    def start(self, about: About) -> Start:
        if about.role in (Role.EMBEDDING, Role.HEAD):
            return Start(spread=self.embedding)
        gain = self.into_stream if about.role is Role.INTO_STREAM else 1.0
        return Start(spread=gain / math.sqrt(about.fan_in))


@part("xavier")
class XavierInitConfig(InitConfig):
    """Uniform numbers of variance 2 / (inputs + outputs) (Glorot & Bengio 2010); a table's rows have length one."""

    gain: float = 1.0

    def start(self, about: About) -> Start:
        if about.role in (Role.EMBEDDING, Role.HEAD):
            return Start(spread=about.fan_in**-0.5)
        return Start(spread=self.gain * math.sqrt(6 / (about.fan_in + about.fan_out)), law="uniform")


@part("narang")
class NarangInitConfig(InitConfig):
    """What Narang et al. (2021) begin from: tables N(0, 1), attention normal, all else cut normal, by inputs."""

    gain: float = 1.0  # on the variance of what stands in channels and joins; 0.1 where there are experts

    def start(self, about: About) -> Start:
        if about.role is Role.EMBEDDING:
            return Start(spread=1.0)
        if about.slot in ("mixer", "cross"):
            return Start(spread=about.fan_in**-0.5)
        gain = self.gain if about.slot else 1.0
        return Start(spread=math.sqrt(gain / about.fan_in), law="truncated")


@part("fixup")
class FixupInitConfig(InitConfig):
    """Fixup (Zhang et al. 2019): what enters the stream begins at zero, what comes before it small by depth.

    Cross-attention begins as it would without Fixup, as in Narang et al. (2021).
    """

    branches: int | None = None  # of the whole model; None: two for each layer

    def start(self, about: About) -> Start:
        if about.slot not in ("mixer", "channel"):
            return NarangInitConfig().start(about)
        if about.role is Role.INTO_STREAM:
            return Start()
        branches = 2 * about.depth if self.branches is None else self.branches
        shrink = branches ** (-1 / 3) if about.slot == "mixer" else 1 / branches
        return Start(spread=math.sqrt(2 * shrink / about.fan_in), law="truncated")


@part("uniform")
class UniformInitConfig(InitConfig):
    """Uniform numbers within 1 / sqrt(inputs), and within one bound for tables: custom among recurrent models."""

    embedding: float = 0.1

    def start(self, about: About) -> Start:
        table = about.role in (Role.EMBEDDING, Role.HEAD)
        return Start(spread=self.embedding if table else about.fan_in**-0.5, law="uniform")


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


def initialise(
    model: nn.Module, config: InitConfig, depth: int, seed: int, only: Collection[str] | None = None
) -> None:
    """Fill every parameter, or only some by name, in place."""
    parameters, own = dict(model.named_parameters()), _starts_of(model)
    for name, role in roles_of(model).items():
        weight = parameters[name]
        if weight.is_meta or (only is not None and name not in only):
            continue
        start = own.get(name) or _shrunk(model, name, _start(config, _about(model, name, role, depth)))
        _fill(weight, start, generator(seed, Purpose.INIT, name))


def _about(model: nn.Module, name: str, role: Role, depth: int) -> About:
    """Return what an initialiser may know of a weight: inputs are its last dimension, outputs the one before."""
    *_, fan_out, fan_in = (1, *model.get_parameter(name).shape)
    return About(role, _slot_of(model, name), fan_in, depth, fan_out)


def _start(config: InitConfig, about: About) -> Start:
    if about.role is Role.GAIN:
        return Start(mean=1.0)
    return Start() if about.role in (Role.BIAS, Role.ROUTER_BIAS) else config.start(about)


def _shrunk(model: nn.Module, name: str, start: Start) -> Start:
    owner = model.get_submodule(name.rpartition(".")[0])
    return dataclasses.replace(start, spread=start.spread * owner.shrink) if isinstance(owner, Module) else start


def _starts_of(model: nn.Module) -> dict[str, Start]:
    starts: dict[str, Start] = {}
    for path, module in model.named_modules():
        if isinstance(module, Module):
            starts |= {f"{path}.{name}" if path else name: start for name, start in module.starts.items()}
    return starts


def _slot_of(model: nn.Module, name: str) -> str:
    """Return the slot of the innermost branch around a parameter."""
    words = name.split(".")
    for cut in range(len(words) - 1, 0, -1):
        outer = model.get_submodule(".".join(words[:cut]))
        if isinstance(outer, Module) and outer.slot:
            return outer.slot
    return ""


@torch.no_grad()
def _fill(weight: Tensor, start: Start, draw: torch.Generator) -> None:
    if not start.spread:
        weight.fill_(start.mean)
        return
    numbers = torch.empty(weight.shape, device="cpu")  # drawn on the CPU in float32: the same on every device
    if start.law == "uniform":
        numbers.uniform_(-1, 1, generator=draw)
    else:
        numbers.normal_(generator=draw)
    if start.law == "truncated":
        _cut(numbers, draw)
    weight.copy_(numbers * start.spread + start.mean)


def _cut(numbers: Tensor, draw: torch.Generator, most: float = 2.0) -> None:
    """Draw anew what lies beyond two deviations, and make up for the variance that this takes."""
    while bool((beyond := numbers.abs() > most).any()):
        numbers[beyond] = torch.randn(int(beyond.sum()), generator=draw, device="cpu")
    numbers /= 0.87962566103423978  # deviation of a normal number cut at two
