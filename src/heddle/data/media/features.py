"""Features: from the samples of a sound, or from given rows, to what a model reads in each frame.

Kinds: log-mel spectra, the cepstra of Davis & Mermelstein (1980), and features that another program computed.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, Count, Positive, part, within
from heddle.data.media.media import MediaFormat
from heddle.data.media.spectra import (
    Scale,
    cosines,
    frame_count,
    mel_filters,
    normalized,
    power_spectrum,
    with_deltas,
)

Normalize = Literal["none", "utterance"]
Seconds = Annotated[float, within("above 0 and at most 10 seconds", lambda seconds: 0 < seconds <= 10)]
Frames = NDArray[np.float32]
WHISPER_WINDOW, WHISPER_HOP = 400, 160  # samples


class FeaturesConfig(Config, ABC):
    """How the array of a medium becomes what a model reads: rows over time, or an image.

    medium: the medium whose arrays it reads.
    over_time: whether the first dimension is time, so that rows are padded and have lengths.
    """

    medium: ClassVar[str]
    over_time: ClassVar[bool] = True

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one frame or, where nothing goes over time, of the whole input."""

    @property
    def media_rate(self) -> int | None:
        """Return how many samples a second the arrays must have; None: they have no such rate."""
        return None

    @abstractmethod
    def count(self, shape: tuple[int, ...]) -> int:
        """Return how many frames an array of this shape becomes; 1 where nothing goes over time."""

    @abstractmethod
    def compute(self, array: NDArray[Any]) -> Frames:
        """Return the features of an array."""

    def check(self, found: MediaFormat) -> None:
        """Refuse arrays of another medium."""
        if found.medium != self.medium:
            raise ConfigError("features.kind", want=f"one that reads {found.medium}s", got=self.kind)


class SoundFeatures(FeaturesConfig):
    """What the features of sounds share: samples of 16 bits at one rate."""

    medium = "sound"

    sample_rate: Positive

    @property
    def media_rate(self) -> int | None:
        return self.sample_rate

    def check(self, found: MediaFormat) -> None:
        """Refuse arrays of another medium, and sounds at another rate."""
        super().check(found)
        if found.sample_rate != self.sample_rate:
            raise ConfigError(
                "features.sample_rate", want=f"{found.sample_rate}, the rate of the data", got=self.sample_rate
            )

    def compute(self, array: NDArray[Any]) -> Frames:
        samples = array.reshape(-1).astype(np.float32)
        return self.of_samples(samples / np.float32(32768) if array.dtype == np.int16 else samples)

    @abstractmethod
    def of_samples(self, samples: NDArray[np.float32]) -> Frames:
        """Return the features of samples between -1 and 1."""


def _check_band(rate: int, low: float, high: float | None) -> None:
    if not 0 <= low < (rate / 2 if high is None else high) <= rate / 2:
        raise ConfigError("high", want=f"above {low:g} and at most {rate / 2:g}, half of the rate", got=high)


@part("log_mel")
class LogMelConfig(SoundFeatures):
    """Log-mel spectrum: the logarithm of the power in bands that are evenly spaced on the mel scale.

    mels: bands.
    sample_rate: samples a second of the sounds.
    window: seconds of each frame.
    hop: seconds from one frame to the next.
    low: lowest frequency in Hz.
    high: highest frequency in Hz; null: half of the rate.
    scale: the mel scale and the form of the filters: of HTK or of Slaney.
    normalize: utterance: each band has mean 0 and deviation 1 over a sound.
    deltas: how often slopes over time are added: 1: once, 2: and their slopes.
    """

    mels: Positive = 80
    sample_rate: Positive = 16_000
    window: Seconds = 0.025
    hop: Seconds = 0.01
    low: float = 20.0
    high: float | None = None
    scale: Scale = "htk"
    normalize: Normalize = "utterance"
    deltas: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_band(self.sample_rate, self.low, self.high)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.mels * (1 + self.deltas),)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return the samples of a window and of a hop, and the length of the transform."""
        window, hop = max(1, round(self.window * self.sample_rate)), max(1, round(self.hop * self.sample_rate))
        return window, hop, 1 << (window - 1).bit_length()

    def count(self, shape: tuple[int, ...]) -> int:
        window, hop, _ = self.sizes
        return frame_count(shape[0], window, hop)

    def log_mel(self, samples: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the logarithm of the power in each band."""
        window, hop, fft = self.sizes
        high = self.sample_rate / 2 if self.high is None else self.high
        filters = mel_filters(self.mels, fft, self.sample_rate, (self.low, high), self.scale)
        return np.asarray(np.log(np.maximum(power_spectrum(samples, window, hop, fft) @ filters.T, 1e-10)))

    def of_samples(self, samples: NDArray[np.float32]) -> Frames:
        frames = with_deltas(self.log_mel(samples), self.deltas)
        return np.asarray(normalized(frames) if self.normalize == "utterance" else frames, np.float32)


@part("cepstra")
class CepstraConfig(SoundFeatures):
    """Mel-frequency cepstra (MFCC): the cosine transform of a log-mel spectrum (Davis & Mermelstein 1980).

    cepstra: coefficients, the zeroth included.
    sample_rate: samples a second of the sounds.
    mels: bands of the spectrum.
    normalize: utterance: each coefficient has mean 0 and deviation 1 over a sound.
    deltas: how often slopes over time are added: 1: once, 2: and their slopes.
    """

    cepstra: Positive = 13
    sample_rate: Positive = 16_000
    mels: Positive = 40
    normalize: Normalize = "utterance"
    deltas: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cepstra > self.mels:
            raise ConfigError("cepstra", want=f"at most the {self.mels} bands", got=self.cepstra)

    @property
    def spectrum(self) -> LogMelConfig:
        """Return the spectrum that is transformed."""
        return LogMelConfig(mels=self.mels, sample_rate=self.sample_rate, normalize="none")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.cepstra * (1 + self.deltas),)

    def count(self, shape: tuple[int, ...]) -> int:
        return self.spectrum.count(shape)

    def of_samples(self, samples: NDArray[np.float32]) -> Frames:
        frames = with_deltas(self.spectrum.log_mel(samples) @ cosines(self.cepstra, self.mels).T, self.deltas)
        return np.asarray(normalized(frames) if self.normalize == "utterance" else frames, np.float32)


@part("whisper")
class WhisperFeaturesConfig(SoundFeatures):
    """The log-mel spectrum of Whisper (Radford et al. 2022): windows centred, 8 decades below the loudest at most.

    mels: bands: 80, or 128 in the large model of version 3.
    seconds: each sound is cut or padded to this length; null: it keeps its own.
    """

    sample_rate: ClassVar[int] = 16_000  # type: ignore[misc]

    mels: Positive = 80
    seconds: Annotated[float, within("at least 0.1", lambda seconds: seconds >= 0.1)] | None = 30.0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.mels,)

    def count(self, shape: tuple[int, ...]) -> int:
        return max(1, self._samples(shape[0]) // WHISPER_HOP)

    def _samples(self, given: int) -> int:
        wanted = given if self.seconds is None else round(self.seconds * self.sample_rate)
        return max(wanted, WHISPER_WINDOW)

    def of_samples(self, samples: NDArray[np.float32]) -> Frames:
        wanted, half = self._samples(len(samples)), WHISPER_WINDOW // 2
        whole = np.pad(samples[:wanted], (0, max(0, wanted - len(samples))))
        power = power_spectrum(np.pad(whole, half, mode="reflect"), WHISPER_WINDOW, WHISPER_HOP, WHISPER_WINDOW)
        filters = mel_filters(self.mels, WHISPER_WINDOW, self.sample_rate, (0.0, self.sample_rate / 2), "slaney")
        bands = np.log10(np.maximum(power[: self.count((wanted,))] @ filters.T, 1e-10))
        return np.asarray((np.maximum(bands, bands.max() - 8) + 4) / 4, np.float32)


@part("given")
class GivenFeaturesConfig(FeaturesConfig):
    """Features that another program computed: the rows of arrays, perhaps normalized and with their slopes.

    width: numbers of each row.
    normalize: utterance: each number has mean 0 and deviation 1 over an array.
    deltas: how often slopes over time are added: 1: once, 2: and their slopes.
    """

    medium = "array"

    width: Positive = 13
    normalize: Normalize = "utterance"
    deltas: Count = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.width * (1 + self.deltas),)

    def count(self, shape: tuple[int, ...]) -> int:
        if shape[1:] != (self.width,):
            raise ConfigError("features.width", want=f"{shape[-1]}, as the arrays of the data have", got=self.width)
        return shape[0]

    def compute(self, array: NDArray[Any]) -> Frames:
        frames = with_deltas(array, self.deltas)
        return np.asarray(normalized(frames) if self.normalize == "utterance" else frames, np.float32)
