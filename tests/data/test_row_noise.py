"""Noise of many rows together equals that of each alone."""

import numpy as np
import pytest

from heddle.core import Purpose, numpy_generator
from heddle.data.rows import row_draws, row_generators
from heddle.data.rows.row_noise import FEW


@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 40])
@pytest.mark.parametrize("limit", [1, 3, 16_379, 2**31 + 1, 2**32])  # of the fourth, half of all words are refused
def test_draws_of_many_places_are_those_of_each_one(count: int, limit: int) -> None:
    places = [("mask", 1000 * number) for number in range(count)]
    shares, whole = row_draws(3, places, 10, 7, limit)
    together = row_generators(3, places)
    for row, (place, rekeyed) in enumerate(zip(places, together, strict=True)):
        alone = numpy_generator(3, Purpose.DATA, *place)
        want = alone.random(10), alone.integers(limit, size=7)
        assert np.array_equal(want[0], shares[row]) and np.array_equal(want[1], whole[row])
        assert np.array_equal(want[0], rekeyed.random(10)) and np.array_equal(want[1], rekeyed.integers(limit, size=7))
        assert rekeyed.integers(9) == alone.integers(9), "half a word is kept for the next draw"
