"""Joins: residual (He 2015), scaled (ReZero, LayerScale) and gated (highway, GRU) connections of a branch."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.core import Config, part
from heddle.core.shapes import Stream
from heddle.nn.base import InitialValues, Linear, Module, Place, Role
from heddle.nn.layers import LayerNormConfig, NormConfig


class JoinConfig(Config, ABC):
    """How the output of a branch is put back into the stream."""

    @abstractmethod
    def build(self, width: int, place: Place) -> "Join":
        """Build the join."""


class Join(Module, ABC):
    """A module `(x, y) -> x` for a stream and the output of a branch."""

    slot = "join"

    @abstractmethod
    def forward(self, x: Stream, y: Stream) -> Stream:
        """Put y back into x."""


@part("residual")
class ResidualConfig(JoinConfig):
    """Residual connection (He et al. 2015); a macaron block adds half (Lu et al. 2019)."""

    factor: float = 1.0

    def build(self, width: int, place: Place) -> Join:
        return Residual(self.factor)


class Residual(Join):
    """x + factor * y."""

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
    """Norm the output of the branch, then add; with a norm before the part, a sandwich (Ding et al. 2021)."""

    norm: NormConfig = LayerNormConfig()

    def build(self, width: int, place: Place) -> Join:
        return Normed(self.norm.build(width))


class Normed(Join):
    """x + norm(y)."""

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
    """LayerScale: scale each feature of the branch by a learned, initially small number (Touvron et al. 2021)."""

    start: float = 0.1

    def build(self, width: int, place: Place) -> Join:
        return ScaledResidual(width, self.start)


class ScaledResidual(Join):
    """x + scale * y."""

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
    """Highway connection: a gate for each feature between stream and branch (Srivastava et al. 2015)."""

    start: float = -1.0  # of the gate's bias: below zero, mostly the stream passes at first

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
    """GRU gating of the residual connection (Parisotto et al. 2019)."""

    norm: NormConfig = LayerNormConfig()  # shared by all inputs of the gates
    start: float = -2.0  # of the update gate's bias: below zero, mostly the stream passes at first

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
    """

    norm: NormConfig = LayerNormConfig(eps=1e-6)

    def build(self, width: int, place: Place) -> Join:
        return NarangGate(width, self.norm)


class NarangGate(GatedJoin):
    """x + y + update * (sigmoid(candidate[reset * x; y]) - y)."""

    def forward(self, x: Stream, y: Stream) -> Stream:
        update = self.update(self.normed_pair(x, y)).sigmoid()
        reset = self.reset(self.normed_pair(self.norm(x), self.norm(y))).sigmoid()
        return x + y.lerp(self.candidate(self.normed_pair(reset * x, y)).sigmoid(), update)
