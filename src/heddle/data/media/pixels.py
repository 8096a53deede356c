"""Pixels as a model reads them, and their keyed augmentation: flips, crops and brightness (Szegedy et al. 2015)."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import ConfigError, Positive, Share, part, within
from heddle.data.media.augmentation import AugmentationConfig, Frames
from heddle.data.media.features import FeaturesConfig
from heddle.data.media.images import Channels

Deviation = Annotated[float, within("above 0", lambda deviation: deviation > 0)]
Size = tuple[Positive, Positive]


class PictureFeatures(FeaturesConfig):
    """What images and video share: pixels of eight bits become [..., channels, rows, columns] about zero."""

    size: Size
    channels: Channels
    mean: float
    deviation: Deviation

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels, *self.size)

    def count(self, shape: tuple[int, ...]) -> int:
        if shape[-3:] != (*self.size, self.channels):
            raise ConfigError("features.size", want=f"{list(shape[-3:-1])}, as the data have", got=list(self.size))
        return shape[0] if self.over_time else 1

    def compute(self, array: NDArray[Any]) -> Frames:
        scaled = np.arange(256, dtype=np.float32) / np.float32(255)
        table = (scaled - np.float32(self.mean)) / np.float32(self.deviation)
        return np.asarray(table[np.moveaxis(array, -1, -3)], np.float32)


@part("pixels")
class PixelsConfig(PictureFeatures):
    """Images: pixels between 0 and 1, minus the mean, divided by the deviation: [channels, rows, columns].

    size: rows and columns of pixels.
    channels: 3: colours, 1: grey.
    mean: what is subtracted.
    deviation: what the rest is divided by.
    """

    medium = "image"
    over_time = False

    size: Size = (112, 112)
    channels: Channels = 3
    mean: float = 0.5
    deviation: Deviation = 0.5


@part("clip")
class ClipConfig(PictureFeatures):
    """Video: frames of pixels between 0 and 1, minus the mean, divided by the deviation.

    size: rows and columns of pixels.
    channels: 3: colours, 1: grey.
    mean: what is subtracted.
    deviation: what the rest is divided by.
    """

    medium = "video"

    size: Size = (32, 32)
    channels: Channels = 3
    mean: float = 0.5
    deviation: Deviation = 0.5


# --- augmentation -----------------------------------------------------------------------------------------------------


@part("flip")
class FlipConfig(AugmentationConfig):
    """Horizontal flip: left becomes right, in a share of the pictures; not for texts that tell left from right.

    share: how many of the pictures.
    """

    dimensions = 3

    share: Annotated[float, within("0 to 1", lambda share: 0 <= share <= 1)] = 0.5

    def apply(self, frames: Frames, draw: np.random.Generator) -> Frames:
        return np.ascontiguousarray(frames[..., ::-1]) if draw.random() < self.share else frames


@part("crop")
class CropConfig(AugmentationConfig):
    """Random crop: a part of the picture, stretched to the whole size; all frames of a video alike (Szegedy 2015).

    least: smallest share of each side.
    """

    dimensions = 3

    least: Annotated[float, within("above 0 and at most 1", lambda least: 0 < least <= 1)] = 0.8

    def apply(self, frames: Frames, draw: np.random.Generator) -> Frames:
        down, across, row, column = draw.random(4)
        for axis, share, place in ((-2, down, row), (-1, across, column)):
            kept = (self.least + (1 - self.least) * share) * (frames.shape[axis] - 1)
            frames = _stretched(frames, axis, place * (frames.shape[axis] - 1 - kept), kept)
        return frames


def _stretched(frames: Frames, axis: int, first: float, kept: float) -> Frames:
    """Return pictures whose axis shows `kept` pixels from `first` on, by linear interpolation."""
    count = frames.shape[axis]
    places = first + kept * np.arange(count) / max(1, count - 1)
    below = np.clip(np.floor(places).astype(np.int64), 0, count - 1)
    share = (places - below).astype(np.float32).reshape((-1, 1) if axis == -2 else (-1,))
    low, high = (np.take(frames, index, axis) for index in (below, np.minimum(below + 1, count - 1)))
    return np.asarray(low + (high - low) * share, np.float32)


@part("brightness")
class BrightnessConfig(AugmentationConfig):
    """Brightness and contrast, changed for the whole picture or video by factors near one.

    strength: 0.2: factors from 0.8 to 1.2, and as much added.
    """

    dimensions = 3

    strength: Share = 0.2

    def apply(self, frames: Frames, draw: np.random.Generator) -> Frames:
        factor, shift = (self.strength * (2 * draw.random(2) - 1)).astype(np.float32)
        return np.asarray(frames * (1 + factor) + shift, np.float32)
