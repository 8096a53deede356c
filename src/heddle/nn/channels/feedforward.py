"""Feed-forward channels: plain (Vaswani et al. 2017), gated (Shazeer 2020), and Fixup's (Zhang et al. 2019)."""

import torch
from torch import nn

from heddle.core import check_at_least, part
from heddle.core.shapes import Stream
from heddle.nn.base import ChannelConfig, Context, FusedLinear, Linear, Part, Place, Role
from heddle.nn.layers import activation


class FeedForwardFamily(ChannelConfig):
    """Any feed-forward channel: what a variant swaps."""


@part("feed_forward")
class FeedForwardConfig(FeedForwardFamily):
    """Widen, bend, narrow."""

    hidden: int | None = None  # None: four times the width
    activation: str = "relu"
    bias: bool = False

    def __post_init__(self) -> None:
        check_at_least(1, hidden=self.hidden)
        activation(self.activation)

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
    """Widen twice; one half, bent, gates the other; narrow."""

    hidden: int | None = None  # None: eight thirds of the width, rounded to 64: as many weights as the plain form
    activation: str = "swish"
    bias: bool = False

    def __post_init__(self) -> None:
        check_at_least(1, hidden=self.hidden)
        activation(self.activation)

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
    """Widen, bend, shift by one learned number, narrow: what is left of the biases where there are no norms."""

    hidden: int | None = None  # None: four times the width
    activation: str = "relu"

    def __post_init__(self) -> None:
        check_at_least(1, hidden=self.hidden)
        activation(self.activation)

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
    """Return how wide the inside is: as the config says, or as many weights as eight squares of the width have."""
    if config.hidden is not None:
        return config.hidden
    return 4 * width if isinstance(config, FeedForwardConfig) else max(64, round(width * 8 / 3 / 64) * 64)


@part("pass")
class IdentityConfig(ChannelConfig):
    """Hand the stream on: with a norm and the join `replace`, a branch of it is post-norm."""

    slot = "norm"

    def build(self, width: int, place: Place) -> Part:
        return Identity()


class Identity(Part):
    """x."""

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return x
