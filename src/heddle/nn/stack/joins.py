"""Joins: how a branch meets the stream: added (He 2015), weighed (Zhang 2019, Touvron 2021), gated (Parisotto 2019)."""

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
    """A module `(x, y) -> x` for a stream and what a branch made of it."""

    slot = "join"

    @abstractmethod
    def forward(self, x: Stream, y: Stream) -> Stream:
        """Put y back into x."""


@part("residual")
class ResidualConfig(JoinConfig):
    """Add; a macaron's channels add half (Lu et al. 2019)."""

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
    """Take the branch instead of the stream."""

    def build(self, width: int, place: Place) -> Join:
        return Replace()


class Replace(Join):
    """y."""

    def forward(self, x: Stream, y: Stream) -> Stream:
        return y


@part("normed")
class NormedConfig(JoinConfig):
    """Norm what a branch made, then add: with a norm before the part too, a sandwich (Ding et al. 2021)."""

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


# --- weighed ----------------------------------------------------------------------------------------------------------


@part("rezero")
class ReZeroConfig(JoinConfig):
    """Weigh the branch by one learned number that begins at zero, so that a deep model begins as nothing.

    Gradients inside the branch are zero until that number has moved, one step later.
    """

    def build(self, width: int, place: Place) -> Join:
        return ScaledResidual(1, start=0.0)


@part("scaled")
class ScaledConfig(JoinConfig):
    """Weigh the branch by one learned number that begins at one (Fixup, Zhang et al. 2019)."""

    def build(self, width: int, place: Place) -> Join:
        return ScaledResidual(1, start=1.0)


@part("layer_scale")
class LayerScaleConfig(JoinConfig):
    """Weigh each feature of the branch by a learned number that begins small (Touvron et al. 2021)."""

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
    """Let each feature choose between the stream and the branch (Srivastava et al. 2015)."""

    start: float = -1.0  # of the gate's bias: below zero, the stream passes first

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
    """Put the branch back as a GRU takes its input: gates see both, a candidate replaces what is forgotten."""

    norm: NormConfig = LayerNormConfig()  # one for all that the gates see
    start: float = -2.0  # of the update gate's bias: below zero, the stream passes first

    def build(self, width: int, place: Place) -> Join:
        return Gated(width, self)


class GatedJoin(Join):
    """What both forms of the gate share: three maps from a pair of vectors, and one norm."""

    def __init__(self, width: int, norm: NormConfig) -> None:
        super().__init__()
        self.norm = norm.build(width)
        self.update, self.reset, self.candidate = (Linear(2 * width, width, bias=True) for _ in range(3))

    def normed_pair(self, x: Stream, y: Stream) -> Float[Tensor, "batch length both"]:
        """Return both, normed, side by side."""
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

    The candidate is bent by a sigmoid, the gate chooses between it and the branch, the result is added, and the reset
    gate sees its inputs normed twice. `gated` is the form that the formula means.
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
