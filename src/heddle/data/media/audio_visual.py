"""Sound with video, side by side in time: speech in video (Petridis et al. 2018); one array for both."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import ConfigError, Positive, part
from heddle.data.media.features import FeaturesConfig, Frames, LogMelConfig, SoundFeatures
from heddle.data.media.images import Channels
from heddle.data.media.media import Media, MediaFormat
from heddle.data.media.pixels import ClipConfig, Deviation, Size
from heddle.data.media.sound import SoundMedia
from heddle.data.media.video import VideoMedia


@dataclass(frozen=True)
class AudioVisualMedia(Media):
    """A video and its sound: [frames, pixels of a frame and the bytes of the sound that goes with it].

    Sound that ends before the video is silent at its end; what goes on after it is left out.
    """

    video: VideoMedia | None = None
    sound: SoundMedia | None = None
    frame_rate: float = 25.0

    def decode(self) -> NDArray[Any]:
        assert self.video is not None
        assert self.sound is not None
        frames = self.video.decode()
        each = samples_per_frame(self.format.sample_rate or 1, self.frame_rate)
        samples = self.sound.decode().reshape(-1)[: len(frames) * each]
        samples = np.pad(samples, (0, len(frames) * each - len(samples))).astype("<i2").reshape(len(frames), each)
        return np.concatenate([frames.reshape(len(frames), -1), samples.view(np.uint8)], axis=1)

    @property
    def digest(self) -> bytes:
        assert self.video is not None
        assert self.sound is not None
        return self.video.digest + self.sound.digest


def samples_per_frame(rate: int, frame_rate: float) -> int:
    """Return how many samples of sound go with a frame of video."""
    return round(rate / frame_rate)


def audio_visual_media(video: VideoMedia, sound: SoundMedia, frame_rate: float) -> AudioVisualMedia:
    """Return a video with its sound, in one array."""
    format = MediaFormat(medium="audio_visual", dtype="uint8", sample_rate=sound.format.sample_rate)
    return AudioVisualMedia(video.path, format, video.start, video.length, video, sound, frame_rate)


@part("audio_visual")
class AudioVisualConfig(FeaturesConfig):
    """Sound with video: each row has the pixels of a frame and the frames of sound that go with it.

    size: rows and columns of pixels.
    channels: 3: colours, 1: grey.
    mean: what is subtracted from pixels between 0 and 1.
    deviation: what the rest is divided by.
    sound: what a model reads of the sound.
    frame_rate: frames of video a second.
    steps: frames of sound that go with a frame of video.
    """

    medium = "audio_visual"

    size: Size = (32, 32)
    channels: Channels = 3
    mean: float = 0.5
    deviation: Deviation = 0.5
    sound: SoundFeatures = LogMelConfig()
    frame_rate: float = 25.0
    steps: Positive = 4

    @property
    def clip(self) -> ClipConfig:
        """Return the features of the video alone."""
        return ClipConfig(size=self.size, channels=self.channels, mean=self.mean, deviation=self.deviation)

    @property
    def pixels(self) -> int:
        """Return the numbers of a frame of the video."""
        return self.size[0] * self.size[1] * self.channels

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.pixels + self.steps * self.sound.shape[0],)

    def count(self, shape: tuple[int, ...]) -> int:
        each = 2 * samples_per_frame(self.sound.sample_rate, self.frame_rate)
        if len(shape) != 2 or shape[1] != self.pixels + each:
            found = f"{shape[-1] - each} numbers a frame, as the data have"
            raise ConfigError("features.size", want=found, got=[*self.size, self.channels])
        return shape[0]

    def check(self, found: MediaFormat) -> None:
        super().check(found)
        if found.sample_rate != self.sound.sample_rate:
            want = f"{found.sample_rate}, the rate of the data"
            raise ConfigError("features.sound.sample_rate", want=want, got=self.sound.sample_rate)

    def compute(self, array: NDArray[Any]) -> Frames:
        pixels = array[:, : self.pixels].reshape(len(array), *self.size, self.channels)
        samples = np.ascontiguousarray(array[:, self.pixels :]).view("<i2").reshape(-1).astype(np.int16)
        heard = self.sound.compute(samples)[: len(array) * self.steps]
        missing = len(array) * self.steps - len(heard)
        heard = np.pad(heard, ((0, missing), (0, 0)), mode="edge") if missing else heard
        seen = self.clip.compute(pixels).reshape(len(array), -1)
        return np.concatenate([seen, heard.reshape(len(array), -1)], axis=1)
