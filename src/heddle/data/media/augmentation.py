"""Augmentation: each time that a row is read it is changed a little, keyed by the row's number in the run.

SpecAugment (Park et al. 2019) masks bands and spans of time; another speed stretches time (Ko et al. 2015).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, Count, Purpose, Share, numpy_generator, part, within

Frames = NDArray[np.float32]
KINDS = {1: "one for rows of numbers (spec_augment, speed)", 3: "one for pictures (flip, crop, brightness)"}
Speed = Annotated[float, within("0.5 to 2", lambda speed: 0.5 <= speed <= 2)]


class AugmentationConfig(Config, ABC):
    """How features are changed in training.

    dimensions: of the frames that it can change: 1: rows of numbers, 3: pictures; None: any.
    """

    dimensions: ClassVar[int | None] = None

    def check(self, index: int, shape: tuple[int, ...]) -> None:
        """Refuse features whose frames, of this shape, it cannot change."""
        if self.dimensions not in (None, len(shape)):
            want = KINDS.get(len(shape), f"one for frames of {len(shape)} dimensions")
            raise ConfigError(f"augment.{index}.kind", want=f"{want}, as rows.features gives", got=self.kind)

    @property
    def longest(self) -> float:
        """Return by what factor it makes rows longer at most."""
        return 1.0

    def length(self, frames: int, draw: np.random.Generator) -> int:
        """Return how many frames `apply` with the same draws makes of so many."""
        return frames

    @abstractmethod
    def apply(self, frames: Frames, draw: np.random.Generator) -> Frames:
        """Return the changed features; the array may be changed in place."""


@part("spec_augment")
class SpecAugmentConfig(AugmentationConfig):
    """SpecAugment: mask some neighbouring bands and some spans of time with the mean (Park et al. 2019).

    bands: masks of bands.
    band_width: most bands of a mask.
    times: masks of time.
    time_width: most frames of a mask.
    time_share: most of all frames that one mask of time covers.
    """

    dimensions = 1

    bands: Count = 2
    band_width: Count = 10
    times: Count = 2
    time_width: Count = 40
    time_share: Share = 0.2

    def apply(self, frames: Frames, draw: np.random.Generator) -> Frames:
        count, width = frames.shape
        mean = frames.mean(dtype=np.float64).astype(np.float32)
        for _ in range(self.bands):
            first, size = _span(draw, width, self.band_width)
            frames[:, first : first + size] = mean
        for _ in range(self.times):
            first, size = _span(draw, count, min(self.time_width, int(self.time_share * count)))
            frames[first : first + size] = mean
        return frames


def _span(draw: np.random.Generator, places: int, longest: int) -> tuple[int, int]:
    """Draw where a mask begins and how many places it covers; two draws, whatever the sizes."""
    size, place = draw.random(2)
    covered = int(size * (min(longest, places) + 1))
    return int(place * (places - covered + 1)), covered


@part("speed")
class SpeedConfig(AugmentationConfig):
    """Another speed: stretch or squeeze time by a factor that is drawn from a few (Ko et al. 2015).

    factors: the speeds to draw from; 1 is as recorded, 1.1 a tenth faster.
    """

    dimensions = 1

    factors: tuple[Speed, ...] = (0.9, 1.0, 1.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.factors:
            raise ConfigError("factors", want="at least one speed", got=[])

    @property
    def longest(self) -> float:
        return max(1.0, 1 / min(self.factors))

    def length(self, frames: int, draw: np.random.Generator) -> int:
        return max(1, round(frames / self.factors[int(draw.random() * len(self.factors))]))

    def apply(self, frames: Frames, draw: np.random.Generator) -> Frames:
        count = len(frames)
        wanted = self.length(count, draw)
        if wanted == count:
            return frames
        places = np.linspace(0, count - 1, wanted)
        below = np.minimum(places.astype(np.int64), max(0, count - 2))
        share = (places - below)[:, None].astype(np.float32)
        return np.asarray(frames[below] * (1 - share) + frames[np.minimum(below + 1, count - 1)] * share)


def _draws(seed: int, number: int, index: int) -> np.random.Generator:
    """Return the random numbers of one augmentation of one row of a run."""
    return numpy_generator(seed, Purpose.DATA, "augment", index, number)


def augmented_length(augment: Sequence[AugmentationConfig], frames: int, seed: int, number: int) -> int:
    """Return how many frames a row has after all augmentations."""
    for index, one in enumerate(augment):
        frames = one.length(frames, _draws(seed, number, index))
    return frames


def augmented(augment: Sequence[AugmentationConfig], frames: Frames, seed: int, number: int) -> Frames:
    """Return the features of a row of a run, changed by all augmentations in order."""
    for index, one in enumerate(augment):
        frames = one.apply(frames, _draws(seed, number, index))
    return frames
