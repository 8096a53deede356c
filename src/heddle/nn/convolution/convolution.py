"""Lightweight convolution, one filter for all positions, and dynamic convolution, one for each (Wu et al. 2019)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import ConfigError, Positive, Share, part, settings, within
from heddle.core.shapes import Stream
from heddle.nn.base import Context, InitialValues, Linear, MixerConfig, Place, Role, Sight, Stateful, upcast
from heddle.nn.state import HiddenState

Taps = Annotated[int, within("at least 2", lambda taps: taps >= 2)]
Past = Float[Tensor, "batch carried"] | None  # the inputs that a decoding step continues from

# --- what every convolution needs: padded inputs, across documents, padding and decoding steps ------------------------


@dataclass(frozen=True)
class ReceptiveField:
    """Receptive field of a filter: the number of positions before and after each one."""

    before: int
    after: int

    @classmethod
    def of(cls, taps: int, sight: Sight) -> "ReceptiveField":
        """Return the field of a filter: causal, or centred with the odd tap in the past."""
        after = 0 if sight == "past" else (taps - 1) // 2
        return cls(taps - 1 - after, after)

    @property
    def taps(self) -> int:
        """Return the number of positions, its own included."""
        return self.before + 1 + self.after


@dataclass(frozen=True)
class PaddedInputs:
    """Padded inputs: output t sees the positions from t to t + taps - 1 of the row."""

    row: Float[Tensor, "batch places width"]
    same_document: Float[Tensor, "batch length taps"] | None  # 1 if a tap is in the same document, else 0; None: all

    def tap_inputs(self) -> list[Stream]:
        """Return the inputs of all outputs for each tap, zeros where a tap is in another document."""
        assert self.same_document is not None
        length, taps = self.same_document.shape[1:]
        return [self.row[:, tap : tap + length] * self.same_document[:, :, tap, None] for tap in range(taps)]


def pad_inputs(x: Stream, ctx: Context, receptive: ReceptiveField, past: Past) -> PaddedInputs:
    """Return the inputs after those of the past, padded with zeros."""
    row, documents = _padded_row(x, ctx, receptive, past)
    if documents is None or ctx.documents is None:
        return PaddedInputs(row, None)
    same_document = documents.unfold(1, receptive.taps, 1) == ctx.documents[..., None]
    return PaddedInputs(row, same_document.to(x.dtype))


def last_inputs(x: Stream, ctx: Context, receptive: ReceptiveField, past: Past) -> Float[Tensor, "batch carried"]:
    """Return the last real inputs that a later output sees, zeros for those of another document."""
    row, documents = _padded_row(x, ctx, receptive, past)
    kept = _last(row, ctx.lengths, receptive.before, x.shape[1])
    if documents is not None:
        own = _last(documents, ctx.lengths, receptive.before, x.shape[1])
        kept = kept * (own == own[:, -1:])[..., None]
    return kept.flatten(1)


def _last(row: Tensor, new: Int[Tensor, " batch"] | None, count: int, length: int) -> Tensor:
    """Return the last `count` positions of each row before its padding."""
    if new is None:
        return row[:, length : length + count]
    positions = new[:, None] + torch.arange(count, device=row.device)
    return row.take_along_dim(positions if row.dim() == 2 else positions[..., None], dim=1)


def _padded_row(
    x: Stream, ctx: Context, receptive: ReceptiveField, past: Past
) -> tuple[Float[Tensor, "batch places width"], Int[Tensor, "batch places"] | None]:
    """Return the padded row and its document numbers; the past belongs to the first document."""
    batch, _, width = x.shape
    if past is None:
        before = x.new_zeros(batch, receptive.before, width)
    else:  # may come from a longer filter
        before = past.unflatten(1, (-1, width))[:, -receptive.before :]
    real = ctx.real(x)
    here = x if real is None else x * real[..., None]
    row = F.pad(torch.cat((before, here), dim=1), (0, 0, 0, receptive.after))
    if ctx.documents is None:
        return row, None
    earlier = ctx.documents[:, :1].expand(-1, receptive.before)
    return row, F.pad(torch.cat((earlier, ctx.documents), dim=1), (0, receptive.after))


def depthwise_conv(padded: PaddedInputs, filters: Float[Tensor, "width taps"]) -> Stream:
    """Depthwise convolution: filter each channel on its own; the last tap is the latest position."""
    if padded.same_document is None:
        return F.conv1d(padded.row.transpose(1, 2), filters[:, None], groups=len(filters)).transpose(1, 2)
    first, *others = padded.tap_inputs()  # measured faster than unfolding for conv1d
    y = first * filters[:, 0]
    for tap, seen in enumerate(others, 1):
        y = torch.addcmul(y, seen, filters[:, tap])
    return y


# --- the mixers -------------------------------------------------------------------------------------------------------


@settings
class ConvolutionConfig(MixerConfig):
    """What lightweight and dynamic convolution share."""

    taps: Taps = 9  # kernel size: positions that an output sees, its own included
    heads: Positive | None = None  # filters, each for several channels; None: one for each channel
    maps: Positive = 1  # linear layers after the filters; Narang et al. use two
    dropout: Share = 0.0  # of the filters


@part("lightweight_convolution")
class LightweightConvolutionConfig(ConvolutionConfig):
    """Lightweight convolution: softmax-normalized filters, the same at every position (Wu et al. 2019).

    taps: kernel size: positions that an output sees, its own included.
    heads: filters, each for several channels; None: one for each channel.
    maps: linear layers after the filters; Narang et al. use two.
    dropout: dropout of the filters.
    """

    def build(self, width: int, place: Place) -> "Convolution":
        return LightweightConvolution(width, self, place)


@part("dynamic_convolution")
class DynamicConvolutionConfig(ConvolutionConfig):
    """Dynamic convolution: softmax-normalized filters that each position computes (Wu et al. 2019).

    taps: kernel size: positions that an output sees, its own included.
    heads: filters, each for several channels; None: one for each channel.
    maps: linear layers after the filters; Narang et al. use two.
    dropout: dropout of the filters.
    """

    def build(self, width: int, place: Place) -> "Convolution":
        return DynamicConvolution(width, self, place)


class Convolution(Stateful, ABC):
    """output(filters * (value(x) · sigmoid(gate(x))) + bias), where the taps of each filter sum to one."""

    roles = {"bias": Role.BIAS}

    def __init__(self, width: int, config: ConvolutionConfig, place: Place) -> None:
        super().__init__()
        self.width, self.heads, self.dropout = width, config.heads or width, config.dropout
        if width % self.heads:
            raise ConfigError("heads", want=f"a divisor of the width {width}", got=self.heads)
        self.receptive = ReceptiveField.of(config.taps, place.sight)
        self.value = Linear(width, width, bias=True)
        self.gate = Linear(width, width, bias=True)
        self.bias = nn.Parameter(torch.empty(width))
        self.inner = nn.Sequential(*(Linear(width, width, bias=True) for _ in range(config.maps - 1)))
        self.output = Linear(width, width, bias=True, role=Role.INTO_STREAM)

    @abstractmethod
    def convolve(self, x: Stream, padded: PaddedInputs) -> Stream:
        """Convolve the padded inputs."""

    @abstractmethod
    def filters(self, gated: Stream) -> Float[Tensor, "#batch #length heads taps"]:
        """Return the filters of each position, or one for all; the last tap is the latest position."""

    def tap_weights(self, x: Stream, ctx: Context) -> Float[Tensor, "batch heads length taps"]:
        """Return the weights of the taps at each position, for inspection: of taps that lie within the row."""
        filters = self.filters(self.gated(x)).expand(*x.shape[:2], -1, -1).transpose(1, 2)
        inside = pad_inputs(torch.ones_like(x[..., :1]), ctx, self.receptive, None)
        return filters * inside.row[..., 0].unfold(1, self.receptive.taps, 1)[:, None]

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.mix(self.gated(x), ctx, None)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, HiddenState]:
        """Continue after the gated inputs in the slot."""
        past, gated = slot.vectors[0] if isinstance(slot, HiddenState) else None, self.gated(x)
        return self.mix(gated, ctx, past), HiddenState((last_inputs(gated, ctx, self.receptive, past),))

    def gated(self, x: Stream) -> Stream:
        """Return the gated inputs, which are convolved."""
        return self.value(x) * self.gate(x).sigmoid()  # type: ignore[no-any-return]

    def mix(self, gated: Stream, ctx: Context, past: Past) -> Stream:
        """Convolve the gated inputs and project them."""
        mixed = self.convolve(gated, pad_inputs(gated, ctx, self.receptive, past)) + self.bias.to(gated.dtype)
        return self.output(self.inner(mixed))  # type: ignore[no-any-return]

    def softmax_filters(self, logits: Float[Tensor, "... taps"], dtype: torch.dtype) -> Float[Tensor, "... taps"]:
        """Return filters whose taps sum to one, with DropConnect in training."""
        return F.dropout(upcast(logits).softmax(-1).to(dtype), self.dropout, self.training)

    def mixing_flops(self, length: int) -> int:
        return 2 * self.receptive.taps * self.width

    def narang_lookup_ops(self, tokens: int) -> int:
        return tokens * self.receptive.taps * self.width


class LightweightConvolution(Convolution):
    """One filter for all positions."""

    # softmax logits, not a matrix: no weight decay, no orthogonalization
    roles = {"bias": Role.BIAS, "weight": Role.BIAS}

    def __init__(self, width: int, config: ConvolutionConfig, place: Place) -> None:
        super().__init__(width, config, place)
        self.weight = nn.Parameter(torch.empty(self.heads, config.taps))
        self.initial_values = {"weight": InitialValues(scale=(config.taps * width) ** -0.5)}

    def filters(self, gated: Stream) -> Float[Tensor, "#batch #length heads taps"]:
        return self.softmax_filters(self.weight, gated.dtype)[None, None]

    def convolve(self, x: Stream, padded: PaddedInputs) -> Stream:
        filters = self.softmax_filters(self.weight, x.dtype)
        return depthwise_conv(padded, filters.repeat_interleave(self.width // self.heads, dim=0))


class DynamicConvolution(Convolution):
    """A filter for each position, made of the gated input there."""

    def __init__(self, width: int, config: ConvolutionConfig, place: Place) -> None:
        super().__init__(width, config, place)
        self.logits = Linear(width, self.heads * config.taps, bias=True)
        self.logits.initial_values = {"weight": InitialValues(scale=(config.taps * width) ** -0.5)}

    def filters(self, gated: Stream) -> Float[Tensor, "#batch #length heads taps"]:
        logits = self.logits(gated).unflatten(-1, (self.heads, self.receptive.taps))
        return self.softmax_filters(logits, gated.dtype)

    def convolve(self, x: Stream, padded: PaddedInputs) -> Stream:
        filters = self.filters(x)
        if padded.same_document is not None:
            filters = filters * padded.same_document[:, :, None]
        seen = padded.row.unfold(1, self.receptive.taps, 1).unflatten(2, (self.heads, -1))
        return (seen * filters[:, :, :, None]).sum(-1).flatten(2)  # type: ignore[no-any-return]
