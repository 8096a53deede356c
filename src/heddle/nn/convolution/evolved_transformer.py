"""Evolved Transformer: the gated linear unit and the convolutions of an architecture search (So et al. 2019)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import ConfigError, Positive, part
from heddle.core.shapes import Stream
from heddle.nn.base import ChannelConfig, Context, Linear, MixerConfig, Module, Part, Place, Role, Sight, Stateful
from heddle.nn.convolution.convolution import Past, ReceptiveField, Taps, depthwise_conv, last_inputs, pad_inputs
from heddle.nn.layers import LayerNormConfig, NormConfig
from heddle.nn.state import HiddenState


@part("gated_linear_unit")
class GatedLinearUnitConfig(ChannelConfig):
    """Gated linear unit (GLU) without an output projection (Dauphin et al. 2017)."""

    def build(self, width: int, place: Place) -> Part:
        return GatedLinearUnit(width)


class GatedLinearUnit(Part):
    """value(x) * sigmoid(gate(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = Linear(width, width, bias=True, role=Role.INTO_STREAM)
        self.gate = Linear(width, width, bias=True)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.value(x) * self.gate(x).sigmoid()  # type: ignore[no-any-return]


# --- filters ----------------------------------------------------------------------------------------------------------


class StandardConvolution(Module):
    """Standard convolution over time: every output channel sees every input channel."""

    roles = {"weight": Role.INSIDE}

    def __init__(self, inputs: int, outputs: int, taps: int, sight: Sight) -> None:
        super().__init__()
        self.receptive = ReceptiveField.of(taps, sight)
        self.inputs = inputs
        self.weight = nn.Parameter(torch.empty(outputs, inputs * taps))

    def forward(self, x: Stream, ctx: Context, past: Past = None) -> Float[Tensor, "batch length outputs"]:
        padded = pad_inputs(x, ctx, self.receptive, past)
        filters = self.weight.to(x.dtype).unflatten(1, (self.inputs, -1))
        if padded.same_document is None:
            return F.conv1d(padded.row.transpose(1, 2), filters).transpose(1, 2)
        return F.linear(torch.cat(padded.tap_inputs(), dim=-1), filters.transpose(1, 2).flatten(1))


class SeparableConvolution(Module):
    """Depthwise separable convolution: point(weight * x + bias)."""

    roles = {"weight": Role.INSIDE, "bias": Role.BIAS}

    def __init__(self, inputs: int, outputs: int, taps: int, place: Place, role: Role = Role.INSIDE) -> None:
        super().__init__()
        self.receptive = ReceptiveField.of(taps, place.sight)
        self.weight = nn.Parameter(torch.empty(inputs, 1, taps))  # 3 axes, so that no optimizer treats it as a matrix
        self.bias = nn.Parameter(torch.empty(inputs))
        self.point = Linear(inputs, outputs, bias=True, role=role)

    def forward(self, x: Stream, ctx: Context, past: Past = None) -> Float[Tensor, "batch length outputs"]:
        padded = pad_inputs(x, ctx, self.receptive, past)
        return self.point(depthwise_conv(padded, self.weight[:, 0].to(x.dtype)) + self.bias.to(x.dtype))  # type: ignore[no-any-return]


def pad_width(x: Float[Tensor, "batch length narrow"], width: int) -> Stream:
    """Pad vectors with zeros to a width."""
    return F.pad(x, (0, width - x.shape[-1]))


def _sizes(width: int, hidden: int | None, times: int, narrow: int | None) -> tuple[int, int]:
    """Return the hidden and the narrow width of a part, by default a multiple of the width and half of it."""
    wide = times * width if hidden is None else hidden
    less = max(1, width // 2) if narrow is None else narrow
    if less > min(width, wide):
        raise ConfigError("narrow", want=f"at most {min(width, wide)}, the width or the hidden size", got=less)
    return wide, less


# --- the encoder's and the decoder's convolution ----------------------------------------------------------------------


@part("evolved_encoder_convolution")
class EvolvedEncoderConvolutionConfig(MixerConfig):
    """Encoder convolution: an up-projection plus a short convolution, then a long separable one (So et al. 2019).

    hidden: inner width; None: four times the width.
    narrow: width of the short convolution and of the output; None: half the width.
    short: taps of the short convolution.
    long: taps of the long convolution.
    norm: norm of the sum.
    """

    hidden: Positive | None = None
    narrow: Positive | None = None
    short: Taps = 3
    long: Taps = 9
    norm: NormConfig = LayerNormConfig()

    def build(self, width: int, place: Place) -> Part:
        return EvolvedEncoderConvolution(width, self, place)


class EvolvedEncoderConvolution(Stateful):
    """down(norm(relu(up(x)) + relu(short(x))))."""

    def __init__(self, width: int, config: EvolvedEncoderConvolutionConfig, place: Place) -> None:
        super().__init__()
        self.width = width
        self.hidden, narrow = _sizes(width, config.hidden, 4, config.narrow)
        self.up = Linear(width, self.hidden)
        self.short = StandardConvolution(width, narrow, config.short, place.sight)
        self.norm = config.norm.build(self.hidden)
        self.down = SeparableConvolution(self.hidden, narrow, config.long, place, Role.INTO_STREAM)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return pad_width(self.down(self.mixed(x, ctx, None), ctx), self.width)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, HiddenState]:
        """Continue after the last inputs of both convolutions."""
        seen, inner = slot.vectors if isinstance(slot, HiddenState) else (None, None)
        mixed = self.mixed(x, ctx, seen)
        y = pad_width(self.down(mixed, ctx, inner), self.width)
        after = last_inputs(x, ctx, self.short.receptive, seen), last_inputs(mixed, ctx, self.down.receptive, inner)
        return y, HiddenState(after)

    def narang_lookup_ops(self, tokens: int) -> int:
        return tokens * self.down.weight.numel()  # depthwise filters only

    def mixed(self, x: Stream, ctx: Context, seen: Past) -> Float[Tensor, "batch length hidden"]:
        """Return the normed sum of both branches."""
        return self.norm(self.up(x).relu() + pad_width(self.short(x, ctx, seen).relu(), self.hidden))  # type: ignore[no-any-return]


@part("evolved_decoder_convolution")
class EvolvedDecoderConvolutionConfig(MixerConfig):
    """Decoder convolution: a long plus a short separable convolution, then another short one (So et al. 2019).

    hidden: inner width; None: twice the width.
    narrow: width of the short convolution beside the long one; None: half the width.
    short: taps of the short convolutions.
    long: taps of the long convolution.
    norm: norm of the sum.
    """

    hidden: Positive | None = None
    narrow: Positive | None = None
    short: Taps = 7
    long: Taps = 11
    norm: NormConfig = LayerNormConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long < self.short:
            raise ConfigError("long", want=f"at least as many taps as short = {self.short}", got=self.long)

    def build(self, width: int, place: Place) -> Part:
        return EvolvedDecoderConvolution(width, self, place)


class EvolvedDecoderConvolution(Stateful):
    """down(norm(relu(long(x)) + short(x)))."""

    def __init__(self, width: int, config: EvolvedDecoderConvolutionConfig, place: Place) -> None:
        super().__init__()
        self.hidden, narrow = _sizes(width, config.hidden, 2, config.narrow)
        self.long = SeparableConvolution(width, self.hidden, config.long, place)
        self.short = SeparableConvolution(width, narrow, config.short, place)
        self.norm = config.norm.build(self.hidden)
        self.down = SeparableConvolution(self.hidden, width, config.short, place, Role.INTO_STREAM)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.down(self.mixed(x, ctx, None), ctx)  # type: ignore[no-any-return]

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, HiddenState]:
        """Continue after the last inputs; those of the long convolution serve the short one too."""
        seen, inner = slot.vectors if isinstance(slot, HiddenState) else (None, None)
        mixed = self.mixed(x, ctx, seen)
        y = self.down(mixed, ctx, inner)
        after = last_inputs(x, ctx, self.long.receptive, seen), last_inputs(mixed, ctx, self.down.receptive, inner)
        return y, HiddenState(after)

    def narang_lookup_ops(self, tokens: int) -> int:
        return tokens * sum(each.weight.numel() for each in (self.long, self.short, self.down))

    def mixed(self, x: Stream, ctx: Context, seen: Past) -> Float[Tensor, "batch length hidden"]:
        """Return the normed sum of both branches."""
        return self.norm(self.long(x, ctx, seen).relu() + pad_width(self.short(x, ctx, seen), self.hidden))  # type: ignore[no-any-return]
