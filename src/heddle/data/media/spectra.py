"""Spectra: short-time Fourier transform, mel filters (Stevens 1937), cepstra (Davis & Mermelstein 1980), deltas."""

from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Scale = Literal["htk", "slaney"]
Frames = NDArray[np.float32]
BLOCK = 1 << 12  # frames transformed at once


def frame_count(samples: int, window: int, hop: int) -> int:
    """Return how many whole windows fit into samples; a sound that is shorter than one has one, padded."""
    return 1 if samples < window else 1 + (samples - window) // hop


def power_spectrum(samples: NDArray[np.floating], window: int, hop: int, fft: int) -> NDArray[np.float64]:
    """Return the power of each frequency in each window of samples, weighted by a periodic Hann window."""
    if len(samples) < window:
        samples = np.pad(samples, (0, window - len(samples)))
    weights = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    pieces = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]
    found = np.empty((len(pieces), fft // 2 + 1))
    for first in range(0, len(pieces), BLOCK):
        spectrum = np.fft.rfft(pieces[first : first + BLOCK].astype(np.float64) * weights, fft)
        found[first : first + BLOCK] = spectrum.real**2 + spectrum.imag**2
    return found


def to_mel(frequency: NDArray[np.float64], scale: Scale) -> NDArray[np.float64]:
    """Return frequencies in Hz on the mel scale."""
    if scale == "htk":
        return np.asarray(2595 * np.log10(1 + frequency / 700))
    linear = frequency * 3 / 200
    return np.where(frequency < 1000, linear, 15 + 27 * np.log(np.maximum(frequency, 1000) / 1000) / np.log(6.4))


def from_mel(mel: NDArray[np.float64], scale: Scale) -> NDArray[np.float64]:
    """Return the frequencies in Hz of places on the mel scale."""
    if scale == "htk":
        return np.asarray(700 * (10 ** (mel / 2595) - 1))
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


@lru_cache(maxsize=16)
def mel_filters(mels: int, fft: int, rate: int, edges: tuple[float, float], scale: Scale) -> NDArray[np.float64]:
    """Return triangles, evenly spaced on the mel scale between two frequencies: [mels, fft // 2 + 1].

    On Slaney's scale each has the same area, on HTK's the same height.
    """
    low, high = to_mel(np.array(edges, np.float64), scale)
    corners = from_mel(np.linspace(low, high, mels + 2), scale)
    bins = np.arange(fft // 2 + 1) * rate / fft
    rising = (bins - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - bins) / np.diff(corners)[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    if scale == "slaney":
        filters *= 2 / (corners[2:] - corners[:-2])[:, None]
    return filters


@lru_cache(maxsize=16)
def cosines(cepstra: int, mels: int) -> NDArray[np.float64]:
    """Return the orthonormal discrete cosine transform (DCT-II) of a log-mel spectrum: [cepstra, mels]."""
    angles = np.pi / mels * (np.arange(mels) + 0.5) * np.arange(cepstra)[:, None]
    return np.asarray(np.cos(angles) * np.sqrt(np.where(np.arange(cepstra)[:, None] == 0, 1, 2) / mels))


def with_deltas(frames: NDArray[np.floating], orders: int, reach: int = 2) -> NDArray[np.float64]:
    """Return features with their slopes over time, and the slopes of these, as often as `orders` says (Furui 1986)."""
    found = [np.asarray(frames, np.float64)]
    for _ in range(orders):
        padded = np.pad(found[-1], ((reach, reach), (0, 0)), mode="edge")
        count, total = len(frames), np.zeros_like(found[0])
        for step in range(1, reach + 1):
            total += step * (padded[reach + step :][:count] - padded[reach - step :][:count])
        found.append(total / (2 * sum(step * step for step in range(1, reach + 1))))
    return np.concatenate(found, axis=1)


def normalized(frames: NDArray[np.floating], floor: float = 1e-5) -> NDArray[np.float64]:
    """Return features with mean 0 and deviation 1 over time, each by itself (CMVN)."""
    wide = np.asarray(frames, np.float64)
    return np.asarray((wide - wide.mean(0)) / np.maximum(wide.std(0), floor))
