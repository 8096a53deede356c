"""Resizing: one architecture at many sizes, as scaling laws need it (Kaplan et al. 2020; Hoffmann et al. 2022).

Width and layers are edited; what a width implies (heads of about their old width, hidden layers in proportion) follows.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from heddle.core import Config, ConfigError, fields_of, find, replace, swap
from heddle.models.networks import ModelConfig
from heddle.models.presets import PresetConfig, preset
from heddle.nn.base import Module, Role
from heddle.nn.stack import ReplaceConfig

GRAIN = 8  # widths, and those of heads and hidden layers, are multiples of it
DEEPER = 1  # by how many layers a shape may differ from the rule of its architecture
OFF_RULE = 0.5  # what a layer off the rule weighs against a size off its target, both as ratios
WIDEST = 16_384


@dataclass(frozen=True, order=True)
class Shape:
    """The size of a model: its layers and its width."""

    layers: int
    width: int

    def __str__(self) -> str:
        return f"{self.layers}x{self.width}"


def shape_of(model: ModelConfig) -> Shape:
    """Return the layers and the width of a model."""
    return _Sizes.of(model).shape


def resize(model: ModelConfig, shape: Shape) -> ModelConfig:
    """Return the same architecture with other layers and another width."""
    sizes = _Sizes.of(model)
    if not sizes.deepens and shape.layers != sizes.shape.layers:
        want = f"{sizes.shape.layers}, which this model cannot change"
        raise ConfigError("model.layers", want=want, got=shape.layers)
    if isinstance(model, PresetConfig):
        kept = {name: sizes.values[name] for name in ("head_width",) if name in sizes.values}  # else it is derived
        return replace(model, **sizes.options(shape), dials=model.dials | kept)
    return _resized_network(model, sizes.shape, shape)


def stack_parameters(model: nn.Module) -> int:
    """Return the parameters without embeddings and head, as Kaplan et al. counted them."""
    outside = set()
    for module in model.modules():
        if isinstance(module, Module):
            ends = {name for name, role in module.roles.items() if role in (Role.EMBEDDING, Role.HEAD)}
            outside |= {id(p) for name, p in module.named_parameters(recurse=False) if name in ends}
    return sum(p.numel() for p in model.parameters() if id(p) not in outside)


# --- sizes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a model by name, and whether its depth can be changed."""

    values: dict[str, int]
    shape: Shape
    deepens: bool

    @classmethod
    def of(cls, model: ModelConfig) -> "_Sizes":
        if isinstance(model, PresetConfig):
            known = preset(model.name)
            usual = {name: one.default for name, one in inspect.signature(known.make).parameters.items()}
            given = {name: value for name, value in fields_of(model).items() if name in usual and value is not None}
            values = {n: v for n, v in (usual | known.options | given | model.dials).items() if type(v) is int}
            deepens = "layers" in values
        else:
            values = {name: value for name, value in fields_of(model).items() if type(value) is int}
            repeats = list(_repeats(model))
            values["layers"] = repeats[0] if len(repeats) == 1 else 1
            deepens = len(repeats) == 1
        if "width" not in values:
            raise ConfigError("model", want="one with a width, to train it at several sizes", got=str(model.kind))
        return cls(values, Shape(values.get("layers", 1), values["width"]), deepens)

    def options(self, shape: Shape) -> dict[str, Any]:
        """Return the options of a preset at another size."""
        found: dict[str, Any] = {"width": shape.width}
        if self.deepens:
            found["layers"] = shape.layers
        ratio = shape.width / self.shape.width
        if "hidden" in self.values:
            found["hidden"] = _scaled(self.values["hidden"], ratio)
        if "heads" in self.values:
            heads = self.values["heads"]
            found["heads"] = _heads(shape.width, self.shape.width / heads, "head_width" in self.values)
            if "kv_heads" in self.values:
                found["kv_heads"] = _kv_heads(found["heads"], heads, self.values["kv_heads"])
        return found


def _repeats(model: Config) -> Iterator[int]:
    for one in find(model, Config):
        if type(times := fields_of(one).get("times")) is int:
            yield times


def _resized_network(model: ModelConfig, before: Shape, shape: Shape) -> ModelConfig:
    """Return a network that is written out at another size: every count of heads and every hidden width follows."""
    ratio = shape.width / before.width

    def edit(one: Config) -> Config:
        own, new = fields_of(one), dict[str, Any]()
        if type(own.get("times")) is int and shape.layers != before.layers:
            new["times"] = shape.layers
        if type(own.get("hidden")) is int:
            new["hidden"] = _scaled(own["hidden"], ratio)
        if type(own.get("heads")) is int:
            wide = own.get("head_width")
            new["heads"] = _heads(shape.width, wide or before.width / own["heads"], wide is not None)
            if type(own.get("kv_heads")) is int:
                new["kv_heads"] = _kv_heads(new["heads"], own["heads"], own["kv_heads"])
        return replace(one, **new) if new else one

    return replace(swap(Config, edit)(model), width=shape.width)


def _scaled(hidden: int, ratio: float) -> int:
    return hidden if ratio == 1 else max(GRAIN, GRAIN * round(hidden * ratio / GRAIN))


def _heads(width: int, head_width: float, fixed: bool) -> int:
    """Return how many heads are nearest to their old width; any number, where heads have a width of their own."""
    if fixed:
        return max(1, round(width / head_width))
    fitting = [n for n in range(1, width + 1) if width % n == 0 and (width // n) % GRAIN == 0] or [1]
    return min(fitting, key=lambda n: abs(math.log(width / n / head_width)))


def _kv_heads(heads: int, heads_before: int, kv_heads_before: int) -> int:
    """Return how many key-value heads keep the sharing nearest; queries that all share one go on doing so."""
    if kv_heads_before == 1 < heads_before:
        return 1
    each = heads_before / kv_heads_before
    return min((n for n in range(1, heads + 1) if heads % n == 0), key=lambda n: abs(math.log(heads / n / each)))


# --- a ladder of shapes -----------------------------------------------------------------------------------------------


class ShapeLadder:
    """Shapes of one architecture by their number of parameters.

    Layers grow as width to the power of `depth`: 1 keeps the proportions of the model, 0 its number of layers.
    """

    def __init__(self, model: ModelConfig, count: Callable[[ModelConfig], int], depth: float | None = None) -> None:
        self.model, self.count, self.sizes = model, count, _Sizes.of(model)
        deepens = self.sizes.deepens and not find(model.expand(), ReplaceConfig)  # without a residual, no
        self.depth = (1.0 if deepens else 0.0) if depth is None else depth
        if self.depth and not self.sizes.deepens:
            raise ConfigError("depth", want="0 for a model whose layers cannot be changed", got=self.depth)
        self._counted: dict[Shape, int] = {}

    def parameters(self, shape: Shape) -> int:
        """Return the parameters of a shape; of a deep one from those of one and of two layers."""
        if not self.depth or shape.layers <= 2:
            return self._count(shape)
        one, two = (self._count(Shape(layers, shape.width)) for layers in (1, 2))
        return one + (shape.layers - 1) * (two - one)

    def _count(self, shape: Shape) -> int:
        if shape not in self._counted:
            self._counted[shape] = self.count(resize(self.model, shape))
        return self._counted[shape]

    def nearest(self, parameters: float) -> Shape:
        """Return the shape nearest to a number of parameters, near the rule for its layers."""
        best, least = None, math.inf
        for shape in self._shapes:
            size, rule = self.parameters(shape), self._rule(shape.width)
            score = abs(math.log(size / parameters)) + OFF_RULE * abs(math.log(shape.layers / rule))
            if score < least:
                best, least = shape, score
            if shape.layers == self._layers(shape.width)[0] and size > 4 * parameters:
                break
        if best is None:
            raise ConfigError("model", want="one that can be built at several widths", got=str(self.model.kind))
        return best

    def _rule(self, width: int) -> float:
        return max(1.0, self.sizes.shape.layers * math.pow(width / self.sizes.shape.width, self.depth))

    def _layers(self, width: int) -> list[int]:
        middle = round(self._rule(width))
        return list(range(max(1, middle - DEEPER), middle + DEEPER + 1)) if self.depth else [middle]

    @cached_property
    def _shapes(self) -> list[Shape]:
        """Return all shapes that may be built, from the narrowest on: steps of about an eighth of the width."""
        widths, width = list[int](), GRAIN
        while width <= WIDEST:
            widths.append(width)
            width += max(GRAIN if width < 4 * GRAIN else 2 * GRAIN, 2 ** int(math.log2(width) - 3))
        return [Shape(layers, wide) for wide in widths for layers in self._layers(wide)]
