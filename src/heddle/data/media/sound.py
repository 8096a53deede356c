"""Sounds: WAV, FLAC, OGG and MP3 as mono samples at one rate, by libsndfile (soundfile); plain WAV without it."""

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import MissingExtra
from heddle.data.media.media import Media, MediaFault, MediaFormat, check_finite, media_faults
from heddle.data.media.resampling import resample

SOUNDS = (".wav", ".flac", ".ogg", ".opus", ".oga", ".aiff", ".aif", ".mp3")
RATES = 1_000, 768_000  # samples a second; others are a damaged header
CHANNELS = 64
STREAMED = 0x7FFF0000  # bytes: a program that writes to a pipe claims about as many as the header can hold
Samples = NDArray[np.float32]


@dataclass(frozen=True)
class SoundMedia(Media):
    """A sound, or a part of one: mono samples at the rate of its format, of 16 bits.

    longest: seconds; a longer sound is not decoded.
    """

    longest: float = 60.0

    def decode(self) -> NDArray[Any]:
        samples, rate = read_sound(self.path, self.start, self.length, self.longest)
        check_finite(samples)
        found = resample(samples, rate, self.format.sample_rate or rate)
        return np.round(np.clip(found, -1, 32767 / 32768) * 32768).astype(np.int16)[:, None]


def sound_media(
    path: Path, rate: int, start: float = 0.0, length: float | None = None, longest: float = 60.0
) -> SoundMedia:
    """Return the sound at a path, to be read at a rate."""
    return SoundMedia(path, MediaFormat(medium="sound", dtype="int16", sample_rate=rate), start, length, longest)


def read_sound(
    path: Path, start: float = 0.0, length: float | None = None, longest: float = 60.0
) -> tuple[Samples, int]:
    """Return the samples of a sound, channels averaged, between -1 and 1, and their rate; raise MediaFault."""
    with media_faults():
        if not path.is_file():
            raise MediaFault("no_file" if not path.exists() else "unreadable", str(path))
        if not path.stat().st_size:
            raise MediaFault("empty")
        reader = _read_plain_wav if _is_plain_wav(path) else _read_by_soundfile
        samples, rate = reader(path, start, length, longest)
    if not samples.size:
        raise MediaFault("empty")
    return samples.mean(axis=1, dtype=np.float32), rate


def _check(rate: int, channels: int, frames: int, span: tuple[float, float | None], longest: float) -> tuple[int, int]:
    """Return the first frame and the number of frames of a part; refuse what a damaged header says."""
    if not RATES[0] <= rate <= RATES[1] or not 1 <= channels <= CHANNELS:
        raise MediaFault("bad_media", f"{channels} channels at {rate} samples a second")
    first, (start, length) = round(span[0] * rate), span
    count = frames - first if length is None else round(length * rate)
    if start < 0 or count < 0 or first + count > frames + rate // 10:
        raise MediaFault("bad_media", f"want seconds {start:g} on, for {length}, of {frames / rate:.2f}")
    if count > longest * rate:
        raise MediaFault("too_long", f"{count / rate:.1f} seconds")
    return first, min(count, frames - first)


# --- plain WAV, by the standard library -------------------------------------------------------------------------------


def _is_plain_wav(path: Path) -> bool:
    """Tell whether a file is a WAV of whole numbers, which the standard library reads."""
    with path.open("rb") as file:
        head = file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return False
    try:
        with wave.open(str(path), "rb") as opened:
            return opened.getsampwidth() in (1, 2, 3, 4)
    except (wave.Error, EOFError, RuntimeError):  # a bare RuntimeError: a chunk whose size is damaged
        return False


def _read_plain_wav(path: Path, start: float, length: float | None, longest: float) -> tuple[Samples, int]:
    try:
        with wave.open(str(path), "rb") as file:
            rate, channels, size = file.getframerate(), file.getnchannels(), file.getsampwidth()
            frames = _frames(file.getnframes(), path.stat().st_size, size * channels)
            first, count = _check(rate, channels, frames, (start, length), longest)
            file.setpos(min(first, file.getnframes()))
            raw = file.readframes(count)
    except (wave.Error, EOFError, RuntimeError) as error:
        raise MediaFault("bad_media", str(error) or "a chunk of another size than it says") from None
    whole = raw[: len(raw) // (size * channels) * size * channels]
    return _scaled(whole, size).reshape(-1, channels), rate


def _frames(claimed: int, size: int, frame: int) -> int:
    """Return how many frames a WAV has; refuse one that was cut, unless its header was written before its end."""
    held = size // frame
    if claimed > held and claimed * frame < STREAMED:
        raise MediaFault("bad_media", f"ends after {held} of {claimed} frames")
    return min(claimed, held)


def _scaled(raw: bytes, size: int) -> Samples:
    """Return whole numbers of some bytes each as floats below 1; of one byte they have no sign."""
    if size == 1:
        return ((np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128).astype(np.float32)
    if size == 3:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return (wide.reshape(-1).view("<i4") / 2**31).astype(np.float32)
    found: Samples = (np.frombuffer(raw, f"<i{size}") / 2 ** (8 * size - 1)).astype(np.float32)
    return found


# --- everything else --------------------------------------------------------------------------------------------------


def _read_by_soundfile(path: Path, start: float, length: float | None, longest: float) -> tuple[Samples, int]:
    try:
        import soundfile
    except (ImportError, OSError):
        raise MissingExtra("soundfile", "media", f"reading {path.suffix or path.name} sounds") from None
    try:
        with soundfile.SoundFile(str(path)) as file:
            rate = int(file.samplerate)
            first, count = _check(rate, file.channels, file.frames, (start, length), longest)
            file.seek(first)
            samples: Samples = file.read(count, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise MediaFault("bad_media", str(error).rstrip(".")[-80:]) from None
    return samples, rate
