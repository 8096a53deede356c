"""Embedding residuals: every layer mixes in the embedded input by a learned scalar (x0 of modded-nanogpt, 2024)."""

import torch
from torch import nn

from heddle.core import part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, InitialValues, Place, Role
from heddle.nn.stack.plan import Depth, Plan, PlanConfig, PlanOutput


@part("rooted")
class RootedConfig(PlanConfig):
    """Repeat a body with its own weights; before each, the input is mixed with the embedded stream.

    body: what is repeated.
    times: how many times: the number of layers.
    """

    body: PlanConfig
    times: Depth

    def depth(self) -> int:
        return self.times * self.body.depth()

    def build(self, width: int, place: Place) -> Plan:
        return Rooted(width, self, place)


class Rooted(Plan):
    """x = body[i](keep[i] * x + root[i] * entry), layer after layer."""

    roles = {"keep": Role.GAIN, "root": Role.GAIN}
    initial_values = {"root": InitialValues(mean=0.0)}

    def __init__(self, width: int, config: RootedConfig, place: Place) -> None:
        super().__init__()
        self.keep, self.root = (nn.Parameter(torch.empty(config.times)) for _ in range(2))
        self.times = config.times
        for i in range(config.times):
            layer = place.layer + i * config.body.depth()
            self.add_module(str(i), config.body.build(width, place.child(str(i), layer)))

    def forward(self, x: Stream, ctx: Context) -> tuple[PlanOutput, Context]:
        entry, keep, root = x, self.keep.to(x.dtype), self.root.to(x.dtype)
        for i in range(self.times):
            x, ctx = self.get_submodule(str(i))(keep[i] * x + root[i] * entry, ctx)
        return x, ctx
