"""Kernels: our own, written in Triton, and `dispatch.py`, which tells where each takes the place of torch's."""

from heddle.nn.kernels.dispatch import (
    begins_early,
    judge,
    judges,
    mix_filled,
    mixes_filled,
    multiplies_codes,
    multiplies_few,
    narrow,
    narrows,
    times_codes,
    times_few,
)

__all__ = [
    "begins_early",
    "judge",
    "judges",
    "mix_filled",
    "mixes_filled",
    "multiplies_codes",
    "multiplies_few",
    "narrow",
    "narrows",
    "times_codes",
    "times_few",
]
