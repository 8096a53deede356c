"""Block: a layer of branches, each norm, part, dropout and join; their order is the architecture (Vaswani 2017)."""

import dataclasses
from collections.abc import Callable

import torch

from heddle.core import Config, part, settings
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Module, PartConfig, Place, PublishesContext, Stateful
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig, NoNormConfig, NormConfig
from heddle.nn.stack.joins import JoinConfig, ResidualConfig
from heddle.nn.stack.plan import Plan, PlanConfig
from heddle.nn.state import Slot


@settings
class BranchConfig(Config):
    """A branch: from the stream through a part and back."""

    part: PartConfig
    norm: NormConfig = NoNormConfig()
    dropout: DropoutConfig = ElementDropoutConfig()
    join: JoinConfig = ResidualConfig()

    def build(self, width: int, place: Place) -> "Branch":
        return Branch(width, self, place)


class Branch(Module):
    """join(x, dropout(part(norm(x))))."""

    def __init__(self, width: int, config: BranchConfig, place: Place) -> None:
        super().__init__()
        self.path, self.slot = place.path, config.part.slot
        self.norm = config.norm.build(width)
        self.part = config.part.build(width, place)
        self.dropout = config.dropout.build()
        self.join = config.join.build(width, place)

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        y, ctx = self.run_part(self.norm(x), ctx)
        return self.join(x, self.dropout(y)), ctx

    def run_part(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        """Run the part, from its slot of the state when there is a state."""
        ctx = self.part.publish(x, ctx) if isinstance(self.part, PublishesContext) else ctx
        if ctx.state is None or not isinstance(self.part, Stateful):
            return self.part(x, ctx), ctx
        key = self.path + ctx.turn
        y, slot = self.part.step(x, ctx, ctx.state.slots.get(key))
        assert isinstance(slot, Slot)
        return y, dataclasses.replace(ctx, state=ctx.state.with_slot(key, slot))


@part("block")
class BlockConfig(PlanConfig):
    """One layer: branches in order."""

    branches: tuple[BranchConfig, ...]

    def depth(self) -> int:
        return 1

    def build(self, width: int, place: Place) -> Plan:
        return Block(width, self, place)


class Block(Plan):
    """Each branch in turn."""

    def __init__(self, width: int, config: BlockConfig, place: Place) -> None:
        super().__init__()
        self.path, self.layer = place.path, place.layer
        self.recompute: Callable[..., tuple[Stream, Context]] | None = None  # activation checkpointing
        self.names: list[str] = []
        for branch in config.branches:
            used = sum(name.rstrip("0123456789_") == branch.part.slot for name in self.names)
            name = f"{branch.part.slot}_{used + 1}" if used else branch.part.slot
            self.names.append(name)
            self.add_module(name, branch.build(width, place.inside(name)))

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        if self.recompute is None or not (self.training and torch.is_grad_enabled()):
            return self.run_branches(x, ctx)
        return self.recompute(self.run_branches, x, ctx)

    def run_branches(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        """Run each branch in turn."""
        for name in self.names:
            x, ctx = self.get_submodule(name)(x, ctx)
        return x, ctx.note(self.path + ctx.turn, x) if ctx.keep else ctx
