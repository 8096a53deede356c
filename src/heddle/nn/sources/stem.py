"""Stems: what reads the pixels before they are cut into patches: nothing, or convolutions (Xiao et al. 2021)."""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, ConfigError, Count, Positive, part
from heddle.nn.base import Linear, Module, Role

Frames = Float[Tensor, "batch frames _ _ _"]  # channels, rows and columns
RealFrames = Bool[Tensor, "batch frames"]
GROUPS = 8  # of channels that are normalized together, where their number allows it


class StemConfig(Config, ABC):
    """What comes between pixels and patches."""

    @abstractmethod
    def build(self, channels: int) -> "Stem":
        """Build the module for pixels of so many numbers."""


class Stem(Module, ABC):
    """A module from frames to smaller frames of more channels; frames that are padding stay zero."""

    channels: int  # of what it returns
    shrinks: int = 1  # how many pixels of a side become one

    @abstractmethod
    def forward(self, frames: Frames, real: RealFrames | None) -> Frames:
        """Return the features; `real` tells which frames are not padding."""


@part("none")
class NoStemConfig(StemConfig):
    """No stem: the pixels themselves are cut into patches, as in ViT."""

    def build(self, channels: int) -> Stem:
        return NoStem(channels)


class NoStem(Stem):
    """frames."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, frames: Frames, real: RealFrames | None) -> Frames:
        return frames


@part("convolutional")
class ConvolutionalStemConfig(StemConfig):
    """Convolutional stem: stages that halve the sides (Xiao et al. 2021), with residual blocks (He et al. 2016).

    channels: of each stage; their number tells how often the sides are halved.
    blocks: residual blocks of two convolutions after each halving.
    frames: how many frames, one of them in the middle, the first convolution of each stage sees; 1: each frame alone.
    """

    channels: tuple[Positive, ...] = (32, 64, 128)
    blocks: Count = 0
    frames: Positive = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels:
            raise ConfigError("channels", want="at least one stage", got="none")
        if self.frames % 2 == 0:
            raise ConfigError("frames", want="an odd number, with the frame itself in the middle", got=self.frames)

    def build(self, channels: int) -> Stem:
        return ConvolutionalStem(channels, self)


class ConvolutionalStem(Stem):
    """Stages of relu(norm(convolution(x))), each with its residual blocks."""

    def __init__(self, channels: int, config: ConvolutionalStemConfig) -> None:
        super().__init__()
        self.channels, self.shrinks = config.channels[-1], 2 ** len(config.channels)
        entering = (channels, *config.channels[:-1])
        self.stages = nn.ModuleList(
            Stage(before, after, config) for before, after in zip(entering, config.channels, strict=True)
        )

    def forward(self, frames: Frames, real: RealFrames | None) -> Frames:
        for stage in self.stages:
            frames = stage(frames)
            if real is not None:  # a bias and a norm made something of empty frames, which the next stage would see
                frames = frames * real[:, :, None, None, None]
        return frames


class Stage(Module):
    """relu(norm(convolution(x))) at half the side, then the residual blocks."""

    def __init__(self, before: int, after: int, config: ConvolutionalStemConfig) -> None:
        super().__init__()
        self.halve = Convolution(before, after, config.frames, stride=2)
        self.norm = ChannelNorm(after)
        self.blocks = nn.ModuleList(ResidualBlock(after) for _ in range(config.blocks))

    def forward(self, x: Frames) -> Frames:
        x = self.norm(self.halve(x)).relu()
        for block in self.blocks:
            x = block(x)
        return x


class ResidualBlock(Module):
    """relu(x + norm(convolution(relu(norm(convolution(x))))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = Convolution(channels, channels), Convolution(channels, channels)
        self.first_norm, self.second_norm = ChannelNorm(channels), ChannelNorm(channels)

    def forward(self, x: Frames) -> Frames:
        inner = self.first_norm(self.first(x)).relu()
        return (x + self.second_norm(self.second(inner))).relu()  # type: ignore[no-any-return]


class Convolution(Module):
    """A convolution of 3 by 3 pixels, over some frames, whose matrix is stored as one of a linear layer."""

    def __init__(self, before: int, after: int, frames: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.matrix = Linear(before * frames * 9, after)
        self.shape, self.stride = (after, before, frames, 3, 3), stride

    def forward(self, x: Frames) -> Frames:
        kernel, frames = self.matrix.dense_weight(x.dtype).view(self.shape), self.shape[2]
        if frames == 1:
            flat = F.conv2d(x.flatten(0, 1), kernel[:, :, 0], stride=self.stride, padding=1)
            return flat.unflatten(0, x.shape[:2])  # type: ignore[no-any-return]
        steps = (1, self.stride, self.stride)
        return F.conv3d(x.transpose(1, 2), kernel, stride=steps, padding=(frames // 2, 1, 1)).transpose(1, 2)


class ChannelNorm(Module):
    """Group normalization of each frame alone (Wu & He 2018): neither the batch nor padding has a say."""

    roles = {"gain": Role.GAIN, "bias": Role.BIAS}

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.empty(channels)), nn.Parameter(torch.empty(channels))
        self.groups = math.gcd(GROUPS, channels)

    def forward(self, x: Frames) -> Frames:
        flat = F.group_norm(x.flatten(0, 1), self.groups, self.gain.to(x.dtype), self.bias.to(x.dtype))
        return flat.unflatten(0, x.shape[:2])  # type: ignore[no-any-return]
