"""Feed-forward networks (FFN, MLP): plain (Vaswani 2017), gated linear unit (GLU, Shazeer 2020), Fixup (Zhang 2019)."""

import torch
from torch import nn

from heddle.core import Positive, part
from heddle.core.shapes import Stream
from heddle.nn.base import ChannelConfig, Context, FusedLinear, Linear, Part, Place, Role
from heddle.nn.layers import ActivationName, activation


class FeedForwardFamily(ChannelConfig):
    """Any feed-forward network."""


@part("feed_forward")
class FeedForwardConfig(FeedForwardFamily):
    """Feed-forward network: up-projection, activation, down-projection.

    hidden: inner width; None: four times the width.
    activation: the function between the two maps, such as relu, gelu or swish.
    bias: whether the maps have biases.
    """

    hidden: Positive | None = None
    activation: ActivationName = "relu"
    bias: bool = False

    def build(self, width: int, place: Place) -> Part:
        return FeedForward(width, self)


class FeedForward(Part):
    """down(activation(up(x)))."""

    def __init__(self, width: int, config: FeedForwardConfig) -> None:
        super().__init__()
        hidden = hidden_width(config, width)
        self.activation = activation(config.activation)
        self.up = Linear(width, hidden, bias=config.bias)
        self.down = Linear(hidden, width, bias=config.bias, role=Role.INTO_STREAM)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


@part("gated_feed_forward")
class GatedFeedForwardConfig(FeedForwardFamily):
    """Gated linear unit: GLU, GEGLU, ReGLU or SwiGLU, by the activation of the gate (Shazeer 2020).

    hidden: inner width; None: 8/3 of the width, rounded to 64: as many weights as the plain form.
    activation: the function of the gate: sigmoid (GLU), gelu (GEGLU), relu (ReGLU), swish (SwiGLU).
    bias: whether the maps have biases.
    """

    hidden: Positive | None = None
    activation: ActivationName = "swish"
    bias: bool = False

    def build(self, width: int, place: Place) -> Part:
        return GatedFeedForward(width, self)


class GatedFeedForward(Part):
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, width: int, config: GatedFeedForwardConfig) -> None:
        super().__init__()
        hidden = hidden_width(config, width)
        self.activation = activation(config.activation)
        self.gate = Linear(width, hidden, bias=config.bias)
        self.up = Linear(width, hidden, bias=config.bias)
        self.down = Linear(hidden, width, bias=config.bias, role=Role.INTO_STREAM)
        self.maps = FusedLinear(self.gate, self.up)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        gate, up = self.maps(x)
        return self.down(self.activation(gate) * up)  # type: ignore[no-any-return]


@part("fixup_feed_forward")
class FixupFeedForwardConfig(FeedForwardFamily):
    """Fixup's feed-forward network: no norms, and one learned scalar instead of biases (Zhang et al. 2019).

    hidden: inner width; None: four times the width.
    activation: the function between the two maps, such as relu, gelu or swish.
    """

    hidden: Positive | None = None
    activation: ActivationName = "relu"

    def build(self, width: int, place: Place) -> Part:
        return FixupFeedForward(width, self)


class FixupFeedForward(Part):
    """down(activation(up(x)) + shift)."""

    roles = {"shift": Role.BIAS}

    def __init__(self, width: int, config: FixupFeedForwardConfig) -> None:
        super().__init__()
        hidden = 4 * width if config.hidden is None else config.hidden
        self.activation = activation(config.activation)
        self.up = Linear(width, hidden)
        self.shift = nn.Parameter(torch.empty(1))
        self.down = Linear(hidden, width, role=Role.INTO_STREAM)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.down(self.activation(self.up(x)) + self.shift.to(x.dtype))  # type: ignore[no-any-return]


def hidden_width(config: FeedForwardConfig | GatedFeedForwardConfig, width: int) -> int:
    """Return the hidden width: that of the config, or by default 8 * width² weights in all."""
    if config.hidden is not None:
        return config.hidden
    return 4 * width if isinstance(config, FeedForwardConfig) else max(64, round(width * 8 / 3 / 64) * 64)


@part("identity", was="pass")
class IdentityConfig(ChannelConfig):
    """Identity: with a norm and the join `replace`, a branch of it is a post-norm."""

    slot = "norm"

    def build(self, width: int, place: Place) -> Part:
        return IdentityChannel()


class IdentityChannel(Part):
    """x."""

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return x
