"""Value residual (ResFormer, Zhou et al. 2024): attention mixes the first layer's values into its own."""

import dataclasses
from abc import ABC, abstractmethod

import torch
from torch import nn

from heddle.core import Config, ConfigError, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, InitialValues, Module, Role


class ValuesConfig(Config, ABC):
    """Which values attention uses."""

    @abstractmethod
    def build(self, layer: int) -> "Values | None":
        """Build the module for a layer, 0 being the first; None: the layer's own values."""


class Values(Module, ABC):
    """A module: a layer's own projected values -> those that it uses, before they are split into heads."""

    @abstractmethod
    def forward(self, value: Stream | None, ctx: Context) -> Stream:
        """Return the values; `value` is None in the layer that published them."""


@part("plain", was="own")
class OwnValuesConfig(ValuesConfig):
    """The layer's own values."""

    def build(self, layer: int) -> Values | None:
        return None


@part("value_residual", was="first")
class ValueResidualConfig(ValuesConfig):
    """Value residual: the layer's own values and the first layer's of the same token, by two learned weights.

    The KV cache holds the sum, so decoding needs the first layer's values of the new token only.
    """

    def build(self, layer: int) -> Values:
        return ValueResidual() if layer else FirstValues()


class FirstValues(Values):
    """The first layer's values, published in the context before the part runs."""

    def publish(self, value: Stream, ctx: Context) -> Context:
        """Return the context with the values for all layers."""
        if ctx.values is not None:
            raise ConfigError("values", "value residuals need exactly one attention in the first layer")
        return dataclasses.replace(ctx, values=value)

    def forward(self, value: Stream | None, ctx: Context) -> Stream:
        return _first_values(ctx)


class ValueResidual(Values):
    """share[0] * value + share[1] * first."""

    roles = {"share": Role.GAIN}
    initial_values = {"share": InitialValues(mean=0.5)}

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.empty(2))

    def forward(self, value: Stream | None, ctx: Context) -> Stream:
        first = _first_values(ctx)
        assert value is not None
        if value.shape != first.shape:
            want = f"the first layer's shape in every layer, {tuple(first.shape)}: the same kv_heads, and no pooling"
            raise ConfigError("values", want=want, got=tuple(value.shape))
        own_weight, first_weight = self.share.to(value.dtype).unbind()
        return own_weight * value + first_weight * first


def _first_values(ctx: Context) -> Stream:
    if ctx.values is None:
        raise ConfigError("values", f"the first layer has no attention with `values: {ValueResidualConfig.kind}`")
    return ctx.values
