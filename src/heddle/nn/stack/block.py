"""Block: a layer of branches, each norm, part, dropout and join; their order is the architecture (Vaswani 2017).

Joins put a branch back into the stream: residual (He 2015), scaled (ReZero, LayerScale), gated (highway, GRU).
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.core import Config, part, settings
from heddle.core.shapes import Stream
from heddle.nn.base import Context, InitialValues, Linear, Module, PartConfig, Place, PublishesContext, Role, Stateful
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig, LayerNormConfig, NoNormConfig, NormConfig
from heddle.nn.stack.plan import Plan, PlanConfig
from heddle.nn.state import Slot


class JoinConfig(Config, ABC):
    """How the output of a branch is put back into the stream."""

    @abstractmethod
    def build(self, width: int, place: Place) -> "Join":
        """Build the join."""


class Join(Module, ABC):
    """A module `(x, y) -> x` for a stream and the output of a branch."""

    slot = "join"
    additive: ClassVar[bool] = False  # whether it adds to the stream and leaves the stream itself as it was

    @abstractmethod
    def forward(self, x: Stream, y: Stream) -> Stream:
        """Put y back into x."""


@part("residual")
class ResidualConfig(JoinConfig):
    """Residual connection (He et al. 2015); a macaron block adds half (Lu et al. 2019).

    factor: factor of the branch.
    """

    factor: float = 1.0

    def build(self, width: int, place: Place) -> Join:
        return Residual(self.factor)


class Residual(Join):
    """x + factor * y."""

    additive = True

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Stream, y: Stream) -> Stream:
        return x + y if self.factor == 1.0 else x + self.factor * y


@part("replace")
class ReplaceConfig(JoinConfig):
    """No residual: the output of the branch replaces the stream."""

    def build(self, width: int, place: Place) -> Join:
        return Replace()


class Replace(Join):
    """y."""

    def forward(self, x: Stream, y: Stream) -> Stream:
        return y


@part("normed")
class NormedConfig(JoinConfig):
    """Norm the output of the branch, then add; with a norm before the part, a sandwich (Ding et al. 2021).

    norm: norm of the branch's output.
    """

    norm: NormConfig = LayerNormConfig()

    def build(self, width: int, place: Place) -> Join:
        return Normed(self.norm.build(width))


class Normed(Join):
    """x + norm(y)."""

    additive = True

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Stream, y: Stream) -> Stream:
        return x + self.norm(y)  # type: ignore[no-any-return]


# --- scaled -----------------------------------------------------------------------------------------------------------


@part("rezero")
class ReZeroConfig(JoinConfig):
    """ReZero: scale the branch by a learned scalar, initially zero, so that the block begins as the identity.

    Gradients inside the branch are zero in the first step (Bachlechner et al. 2020).
    """

    def build(self, width: int, place: Place) -> Join:
        return ScaledResidual(1, start=0.0)


@part("scaled")
class ScaledConfig(JoinConfig):
    """Scale the branch by a learned scalar, initially one (Fixup, Zhang et al. 2019)."""

    def build(self, width: int, place: Place) -> Join:
        return ScaledResidual(1, start=1.0)


@part("layer_scale")
class LayerScaleConfig(JoinConfig):
    """LayerScale: scale each feature of the branch by a learned, initially small number (Touvron et al. 2021).

    start: initial value of each number.
    """

    start: float = 0.1

    def build(self, width: int, place: Place) -> Join:
        return ScaledResidual(width, self.start)


class ScaledResidual(Join):
    """x + scale * y."""

    additive = True
    roles = {"scale": Role.GAIN}

    def __init__(self, features: int, start: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(features))
        self.initial_values = {"scale": InitialValues(mean=start)}

    def forward(self, x: Stream, y: Stream) -> Stream:
        return x + self.scale.to(y.dtype) * y


# --- gated ------------------------------------------------------------------------------------------------------------


@part("highway")
class HighwayConfig(JoinConfig):
    """Highway connection: a gate for each feature between stream and branch (Srivastava et al. 2015).

    start: initial bias of the gate: below zero, mostly the stream passes at first.
    """

    start: float = -1.0

    def build(self, width: int, place: Place) -> Join:
        return Highway(width, self.start)


class Highway(Join):
    """gate * y + (1 - gate) * x, with gate = sigmoid(carry(x))."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.carry = Linear(width, width, bias=True)
        self.initial_values = {"carry.bias": InitialValues(mean=start)}

    def forward(self, x: Stream, y: Stream) -> Stream:
        return x.lerp(y, self.carry(x).sigmoid())


@part("gated")
class GatedConfig(JoinConfig):
    """GRU gating of the residual connection (Parisotto et al. 2019).

    norm: norm that all inputs of the gates share.
    start: initial bias of the update gate: below zero, mostly the stream passes at first.
    """

    norm: NormConfig = LayerNormConfig()
    start: float = -2.0

    def build(self, width: int, place: Place) -> Join:
        return Gated(width, self)


class GatedJoin(Join):
    """What both gated joins share: three maps from a pair of vectors, and one norm."""

    def __init__(self, width: int, norm: NormConfig) -> None:
        super().__init__()
        self.norm = norm.build(width)
        self.update, self.reset, self.candidate = (Linear(2 * width, width, bias=True) for _ in range(3))

    def normed_pair(self, x: Stream, y: Stream) -> Float[Tensor, "batch length both"]:
        """Return both, normed and concatenated."""
        return torch.cat((self.norm(x), self.norm(y)), dim=-1)


class Gated(GatedJoin):
    """x + update * (tanh(candidate[reset * x; y]) - x)."""

    def __init__(self, width: int, config: GatedConfig) -> None:
        super().__init__(width, config.norm)
        self.initial_values = {"update.bias": InitialValues(mean=config.start)}

    def forward(self, x: Stream, y: Stream) -> Stream:
        both = self.normed_pair(x, y)
        update, reset = self.update(both).sigmoid(), self.reset(both).sigmoid()
        return x.lerp(self.candidate(self.normed_pair(reset * x, y)).tanh(), update)


@part("narang_gate")
class NarangGateConfig(JoinConfig):
    """The Universal Transformer's gate as Narang et al. (2021) ran it.

    The candidate has a sigmoid, the gate chooses between it and the branch, the result is added, and the reset gate
    sees its inputs normed twice. `gated` is the usual form.

    norm: norm of the inputs of the gates.
    """

    norm: NormConfig = LayerNormConfig(eps=1e-6)

    def build(self, width: int, place: Place) -> Join:
        return NarangGate(width, self.norm)


class NarangGate(GatedJoin):
    """x + y + update * (sigmoid(candidate[reset * x; y]) - y)."""

    additive = True

    def forward(self, x: Stream, y: Stream) -> Stream:
        update = self.update(self.normed_pair(x, y)).sigmoid()
        reset = self.reset(self.normed_pair(self.norm(x), self.norm(y))).sigmoid()
        return x + y.lerp(self.candidate(self.normed_pair(reset * x, y)).sigmoid(), update)


# --- branches and blocks ----------------------------------------------------------------------------------------------


@settings
class BranchConfig(Config):
    """A branch: from the stream through a part and back.

    part: what computes: attention, a recurrence, a convolution, a feed-forward network.
    norm: norm before the part.
    dropout: dropout after the part.
    join: how the result joins the stream.
    """

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
    """One layer: branches in order.

    branches: the branches, in order.
    """

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
            self.add_module(name, branch.build(width, place.child(name)))

    def forward(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        if self.recompute is None or not torch.is_grad_enabled():
            return self.run_branches(x, ctx)
        return self.recompute(self.run_branches, x, ctx)

    def run_branches(self, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        """Run each branch in turn."""
        for name in self.names:
            x, ctx = self.get_submodule(name)(x, ctx)
        return x, ctx.note(self.path + ctx.turn, x) if ctx.keep else ctx
