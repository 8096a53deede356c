"""Frame embedding: the features of a sound, shortened over time by strided convolutions (Dong et al. 2018)."""

from itertools import pairwise
from typing import Annotated, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Positive, UsageError, part, within
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Linear, Place, Role
from heddle.nn.ends.embedding import Embedding, EmbeddingConfig
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig

Frames = Float[Tensor, "batch frames *features"]  # numbers of sound, or the pixels of video
Planes = Float[Tensor, "batch channels frames bands"]
HalvedPlanes = Float[Tensor, "batch filters halved_frames halved_bands"]
Length = TypeVar("Length", Tensor, int)
TAPS = 3  # of a filter, over time and over bands


@part("frames")
class FrameEmbeddingConfig(EmbeddingConfig):
    """Frames of features, such as log-mel spectra: convolutions that halve time and bands, and a projection.

    features: numbers of each frame.
    halvings: convolutions with a stride of 2; two make a quarter of the frames.
    channels: filters of each convolution.
    scale: factor of the vectors.
    dropout: dropout of the embedded frames.
    """

    reads = "frames"

    features: Positive = 80
    halvings: Annotated[int, within("0 to 4", lambda count: 0 <= count <= 4)] = 2
    channels: Positive = 32
    scale: float = 1.0
    dropout: DropoutConfig = ElementDropoutConfig()

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return FrameEmbedding(width, self)

    @property
    def item_shape(self) -> tuple[int, ...] | None:
        return (self.features,)


class FrameEmbedding(Embedding):
    """dropout(scale * map(relu(convolution(... relu(convolution(frames)))))); padding is set to zero before each."""

    def __init__(self, width: int, config: FrameEmbeddingConfig) -> None:
        super().__init__()
        self.features, self.scale = config.features, config.scale
        self.pooling_factor = 2**config.halvings
        counts = [1, *[config.channels] * config.halvings]
        self.convolutions = nn.ModuleList(PlaneConvolution(*sizes) for sizes in pairwise(counts))
        bands = config.features
        for _ in range(config.halvings):
            bands = halved(bands)
        self.map = Linear(counts[-1] * bands, width, bias=True)
        self.dropout = config.dropout.build()

    def forward(self, inputs: Frames, ctx: Context) -> Stream:
        x, lengths = inputs[:, None], ctx.lengths
        for convolution in self.convolutions:
            x = convolution(_without_padding(x, lengths)).relu()
            lengths = None if lengths is None else halved(lengths)
        y = self.map(x.transpose(1, 2).flatten(2))
        return self.dropout(y if self.scale == 1.0 else y * self.scale)  # type: ignore[no-any-return]

    def length(self, inputs: Tensor) -> int:
        self.check_input(inputs[0])
        count = inputs.shape[1]
        for _ in self.convolutions:
            count = halved(count)
        return count

    def real_lengths(self, inputs: Tensor, lengths: Int[Tensor, " batch"] | None) -> Int[Tensor, " batch"] | None:
        for _ in self.convolutions:
            lengths = None if lengths is None else halved(lengths)
        return lengths

    def check_input(self, source: Tensor) -> None:
        if source.dim() != 2 or source.shape[1] != self.features or not len(source) or not source.is_floating_point():
            want = f"frames of {self.features} features each, as floats of shape [frames, {self.features}]"
            raise UsageError(f"source: want {want}, got {str(source.dtype)[6:]} of shape {list(source.shape)}")

    def mixing_flops(self, length: int) -> int:
        """Count the products of the convolutions, whose filters are used at every band."""
        total, bands, factor = 0, self.features, 1
        for convolution in self.convolutions:
            assert isinstance(convolution, PlaneConvolution)
            bands, factor = halved(bands), 2 * factor
            total += 2 * (bands - 1) * convolution.weight.numel() * self.pooling_factor // factor
        return total


class PlaneConvolution(Linear):
    """A convolution over time and bands, with a stride of 2 in both; its filters are the rows of a matrix."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs * TAPS * TAPS, outputs, bias=True, role=Role.INSIDE)
        self.inputs = inputs

    def forward(self, x: Planes) -> HalvedPlanes:
        weight = self.dense_weight(x.dtype).unflatten(1, (self.inputs, TAPS, TAPS))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.conv2d(x, weight, bias, stride=2, padding=TAPS // 2)


def halved(length: Length) -> Length:
    """Return how many places are left after a stride of 2: half, rounded up."""
    return (length + 1) // 2


def _without_padding(x: Planes, lengths: Int[Tensor, " batch"] | None) -> Planes:
    if lengths is None:
        return x
    return x * (torch.arange(x.shape[2], device=x.device) < lengths[:, None])[:, None, :, None]
