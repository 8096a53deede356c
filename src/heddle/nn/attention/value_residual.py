"""Values: what attention takes from those it looks at: its own, or with the first layer's in it (Zhou et al. 2024)."""

import dataclasses
from abc import ABC, abstractmethod

import torch
from torch import nn

from heddle.core import Config, ConfigError, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, InitialValues, Module, Role


class ValuesConfig(Config, ABC):
    """What attention takes from those it looks at."""

    @abstractmethod
    def build(self, layer: int) -> "Values | None":
        """Build the module for a layer, 0 being the first; None: the layer's own values."""


class Values(Module, ABC):
    """A module: a layer's own projected values -> those that it keeps and mixes, cut into heads later."""

    @abstractmethod
    def forward(self, own: Stream | None, ctx: Context) -> Stream:
        """Return the values; own is None where they were left."""


@part("own")
class OwnValuesConfig(ValuesConfig):
    """Take the layer's own values."""

    def build(self, layer: int) -> Values | None:
        return None


@part("first")
class ValueResidualConfig(ValuesConfig):
    """Mix the layer's own values with what the first layer had for the same token, by two shares that it learns.

    A cache holds them mixed, so a step needs nothing of the first layer but what it has for the new token.
    """

    def build(self, layer: int) -> Values:
        return ValueResidual() if layer else FirstValues()


class FirstValues(Values):
    """What the first layer has left: made before the part runs."""

    def publish(self, own: Stream, ctx: Context) -> Context:
        """Return the context with values for all layers."""
        if ctx.values is not None:
            raise ConfigError("values", want="one attention in the first layer, gone through once", got="more")
        return dataclasses.replace(ctx, values=own)

    def forward(self, own: Stream | None, ctx: Context) -> Stream:
        return _left(ctx)


class ValueResidual(Values):
    """share[0] * own + share[1] * first."""

    roles = {"share": Role.GAIN}
    initial_values = {"share": InitialValues(mean=0.5)}

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.empty(2))

    def forward(self, own: Stream | None, ctx: Context) -> Stream:
        first = _left(ctx)
        assert own is not None
        if own.shape != first.shape:
            wish = f"as many in every layer, {tuple(first.shape)}: one count of heads for keys, and no pool"
            raise ConfigError("values", want=wish, got=tuple(own.shape))
        mine, theirs = self.share.to(own.dtype).unbind()
        return mine * own + theirs * first


def _left(ctx: Context) -> Stream:
    if ctx.values is None:
        wish = "the same in the first layer, by attention that is a branch of its own"
        raise ConfigError("values", want=wish, got="nothing left by it")
    return ctx.values
