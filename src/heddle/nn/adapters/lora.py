"""LoRA: low-rank adaptation of frozen matrices by small trainable ones (Hu et al. 2021)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, ConfigError, Positive, Share, nearest, part
from heddle.nn.base import Adapter, InitialValues, Linear, Role, upcast
from heddle.nn.channels import GroupedLinear, Groups, grouped_gemm
from heddle.nn.stack import Block

# The linear layers of attention and feed-forward parts of every kind.
DEFAULT_TARGETS = ("query", "key", "value", "output", "latent", "turned", "gate", "up", "down")


@dataclass(frozen=True)
class LinearMap:
    """A linear layer of a model, which an adapter can be applied to."""

    path: str
    layer: int | None  # None: outside the stack
    module: Linear | GroupedLinear


class AdapterConfig(Config, ABC):
    """An adapter of some linear layers of a model; all other weights are frozen."""

    targets: tuple[str, ...] | None
    layers: tuple[int, ...] | None

    @abstractmethod
    def build(self, module: Linear | GroupedLinear) -> Adapter:
        """Build the adapter of one linear layer."""


@part("lora")
class LoraConfig(AdapterConfig):
    """LoRA: add the product of two low-rank matrices, one of them initially zero (Hu et al. 2021).

    rank: inner width of the two matrices.
    alpha: strength of the adapter, before it is divided as `scaling` says.
    scaling: alpha / rank, or alpha / sqrt(rank): rsLoRA (Kalajdzievski 2023).
    dropout: dropout of the adapter's input.
    targets: names of linear layers or ends of their paths; None: attention, feed-forward.
    layers: which layers, counted from 0 in each tower; None: all.
    """

    rank: Positive = 8
    alpha: float = 16.0
    scaling: Literal["rank", "root"] = "rank"
    dropout: Share = 0.0
    targets: tuple[str, ...] | None = None
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets == () or self.layers == ():
            field = "targets" if self.targets == () else "layers"
            raise ConfigError(field, want="at least one, or null for all", got=[])

    @property
    def scale(self) -> float:
        """Return the factor of the product."""
        return self.alpha / (self.rank if self.scaling == "rank" else self.rank**0.5)

    def build(self, module: Linear | GroupedLinear) -> Adapter:
        if isinstance(module, GroupedLinear):
            return GroupedLora(module.weight.shape, self, module.active_share)
        return Lora(module.weight.shape, self)


class LowRank(Adapter, ABC):
    """scale * up · down, of low rank."""

    roles = {"down": Role.INSIDE, "up": Role.INSIDE}

    def __init__(self, shape: Sequence[int], config: LoraConfig) -> None:
        super().__init__()
        *experts, outputs, inputs = shape
        self.dropout_rate, self.scale = config.dropout, config.scale
        self.down = nn.Parameter(torch.empty(*experts, config.rank, inputs))
        self.up = nn.Parameter(torch.empty(*experts, outputs, config.rank))
        self.initial_values = {"down": InitialValues(scale=inputs**-0.5, distribution="uniform"), "up": InitialValues()}

    def drop_inputs(self, x: Tensor) -> Tensor:
        """Return the input, with dropout in training."""
        return F.dropout(x, self.dropout_rate) if self.dropout_rate and self.training else x

    def delta(self) -> Float[Tensor, "..."]:
        return upcast(self.up) @ upcast(self.down) * self.scale

    def extra_repr(self) -> str:
        return f"{self.down.shape[-1]} -> {self.down.shape[-2]} -> {self.up.shape[-2]}"


class Lora(LowRank):
    """scale * up · down · dropout(x)."""

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        narrow = F.linear(self.drop_inputs(x), self.down.to(x.dtype))
        return F.linear(narrow, self.up.to(x.dtype)) * self.scale


class GroupedLora(LowRank):
    """scale * up[expert] · down[expert] · dropout(row), on each expert's rows."""

    def __init__(self, shape: Sequence[int], config: LoraConfig, active_share: float) -> None:
        super().__init__(shape, config)
        self.active_share = active_share

    def forward(self, rows: Float[Tensor, "rows inputs"], groups: Groups) -> Float[Tensor, "rows outputs"]:
        narrow = grouped_gemm(self.drop_inputs(rows), self.down.to(rows.dtype), groups.offsets)
        return grouped_gemm(narrow, self.up.to(rows.dtype), groups.offsets) * self.scale

    def active_fraction(self) -> float:
        return self.active_share


# --- target modules ---------------------------------------------------------------------------------------------------


def find_linears(module: nn.Module, path: str = "", layer: int | None = None) -> Iterator[LinearMap]:
    """Yield every linear layer of a model, with its path and layer."""
    if isinstance(module, Linear | GroupedLinear):
        yield LinearMap(path, layer, module)
        return
    layer = module.layer if isinstance(module, Block) else layer
    for name, child in module.named_children():
        yield from find_linears(child, f"{path}.{name}" if path else name, layer)


def apply_adapters(model: nn.Module, adapters: Sequence[AdapterConfig], tied: Mapping[str, str]) -> None:
    """Apply adapters to the linear layers that they name; `tied` maps each name of a tied matrix to another."""
    maps = list(find_linears(model))
    for number, config in enumerate(adapters):
        try:
            chosen = _select_targets(config, maps, model, tied)
        except ConfigError as error:
            raise error.with_prefix(f"adapters.{number}") from None
        for found in chosen:
            if found.module.adapter is not None:
                want = "linear layers without another adapter"
                raise ConfigError(f"adapters.{number}.targets", want=want, got=found.path)
            found.module.adapter = config.build(found.module)


def _select_targets(
    config: AdapterConfig, maps: list[LinearMap], model: nn.Module, tied: Mapping[str, str]
) -> list[LinearMap]:
    known = {found.layer for found in maps if found.layer is not None}
    for layer in config.layers or ():
        if layer not in known:
            raise ConfigError("layers", want=f"0 to {max(known, default=0)}, which have linear layers", got=layer)
    among = [found for found in maps if config.layers is None or found.layer in config.layers]
    targets = DEFAULT_TARGETS if config.targets is None else config.targets
    for target in config.targets or ():
        if not any(path_matches(found.path, target) for found in among):
            raise _unknown_target(target, among, model, tied)
    chosen = [found for found in among if any(path_matches(found.path, target) for target in targets)]
    if not chosen:
        names = sorted({found.path.rpartition(".")[2] for found in among})
        raise ConfigError(
            "targets", want=f"linear layers of the model: {', '.join(names) or 'none'}", got=config.targets
        )
    for found in chosen:
        if (other := tied.get(f"{found.path}.weight")) is not None:
            raise ConfigError("targets", want="linear layers that are not tied", got=f"{found.path}, also {other}")
    return chosen


def path_matches(path: str, target: str) -> bool:
    """Tell whether a path equals or ends in a target."""
    return path == target or path.endswith(f".{target}")


def _unknown_target(target: str, maps: list[LinearMap], model: nn.Module, tied: Mapping[str, str]) -> ConfigError:
    if (other := tied.get(f"{target}.weight")) is not None:
        return ConfigError("targets", want="linear layers that are not tied", got=f"{target}, whose matrix is {other}")
    names = {found.path.rpartition(".")[2] for found in maps}
    want = f"names of linear layers, such as {', '.join(name for name in DEFAULT_TARGETS if name in names) or 'query'}"
    if target in dict(model.named_modules()):
        return ConfigError("targets", want=want, got=f"{target}, which is a {_kind(model, target)}")
    return ConfigError("targets", want=want, got=target, near=nearest(target, names))


def _kind(model: nn.Module, path: str) -> str:
    return type(model.get_submodule(path)).__name__
