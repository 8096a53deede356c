"""Resampling: another number of samples a second, by a windowed sinc in polyphase form (Smith & Gossett 1984)."""

from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

ZEROS = 24  # zero crossings of the sinc on either side
ROLLOFF = 0.94  # of the lower Nyquist frequency, where the filter begins to fall
BETA = 12.0  # of the Kaiser window: side lobes below -110 dB
BLOCK = 1 << 14  # outputs computed at once


def resample(samples: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    """Return samples at another rate; as many as fill the same time, rounded up."""
    if rate == wanted or not len(samples):
        return samples
    divisor = gcd(rate, wanted)
    up, down = wanted // divisor, rate // divisor
    filters, reach = _filters(up, down)
    count = -(-len(samples) * up // down)
    padded = np.pad(samples.astype(np.float32), (reach, reach + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, filters.shape[1])
    found = np.empty(count, np.float32)
    for first in range(0, count, BLOCK):
        places = np.arange(first, min(first + BLOCK, count)) * down
        starts, phases = places // up, places % up
        found[first : first + len(places)] = np.einsum("nt,nt->n", windows[starts], filters[phases])
    return found


@lru_cache(maxsize=16)
def _filters(up: int, down: int) -> tuple[NDArray[np.float32], int]:
    """Return the filter of each phase, from `reach` inputs before its place on, and that reach."""
    cutoff = ROLLOFF * min(1.0, up / down)  # of the input's Nyquist frequency
    reach = int(np.ceil(ZEROS / cutoff))
    offsets = np.arange(-reach, reach + 1)[None] - np.arange(up)[:, None] / up
    window = np.i0(BETA * np.sqrt(np.clip(1 - (offsets / (reach + 1)) ** 2, 0, None))) / np.i0(BETA)
    filters = cutoff * np.sinc(cutoff * offsets) * window
    return (filters / filters.sum(1, keepdims=True)).astype(np.float32), reach
