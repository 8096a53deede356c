"""Noise keyed by row: random numbers for many keys at once, the very ones that each key draws alone."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from heddle.core import Purpose, key

NoiseKey = tuple[int | str, ...]  # what the noise is for, and the number of the row
FEW = 16  # seeds that are hashed one by one, which is faster than all together
SPARE = 8  # words drawn beyond those that whole numbers need, since a few are refused


def row_generators(seed: int, keys: Sequence[NoiseKey]) -> Iterator[np.random.Generator]:
    """Yield for each key the generator of `numpy_generator`, for the purpose of data.

    It is one object that gets another key each time: use it before the next.
    """
    philox, zeros = np.random.Philox(0), np.zeros(4, np.uint64)
    drawn, fresh = np.random.Generator(philox), philox.state  # nothing is left in its buffer
    for keyed in _philox_keys([key(seed, Purpose.DATA, *where) for where in keys]):
        fresh["state"] = {"counter": zeros, "key": keyed}
        philox.state = fresh
        yield drawn


def _philox_keys(seeds: list[int]) -> NDArray[np.uint64]:
    """Return what `SeedSequence` makes of each seed of at most 64 bits as the key of a Philox generator."""
    if len(seeds) < FEW:
        found = [np.random.SeedSequence(one).generate_state(2, np.uint64) for one in seeds]
        return np.array(found, np.uint64).reshape(len(seeds), 2)
    mask, shift, every = np.uint64(0xFFFFFFFF), np.uint64(16), np.array(seeds, np.uint64)
    constant = 0x43B0D7E5

    def scramble(value: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
        """Hash words of 32 bits, by a constant that changes with every use."""
        nonlocal constant
        value = value ^ np.uint64(constant)
        constant = constant * factor & 0xFFFFFFFF
        value = value * np.uint64(constant) & mask
        return np.asarray(value ^ (value >> shift))

    pool = [scramble(word, 0x931E8875) for word in (every & mask, every >> np.uint64(32), 0 * every, 0 * every)]
    for source in range(4):
        for target in range(4):
            if source != target:
                hashed = scramble(pool[source], 0x931E8875) * np.uint64(0x4973F715)
                mixed = (pool[target] * np.uint64(0xCA01F9DD) - hashed) & mask
                pool[target] = mixed ^ (mixed >> shift)
    constant = 0x8B51F9DD
    low, high, *others = (scramble(word, 0x58F38DED) for word in pool)
    return np.stack([low | high << np.uint64(32), others[0] | others[1] << np.uint64(32)], axis=1)


def row_draws(
    seed: int,
    keys: Sequence[NoiseKey],
    shares: int,
    integers: int = 0,
    limit: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return for each key a row of numbers below 1, then one of whole numbers below a limit of at most 2**32.

    They are what `random` and then `integers` of the generator of the key draw, made for all keys together.
    """
    words = shares + (integers + 1) // 2
    bits = _keyed_bits(seed, keys, words + (SPARE if integers else 0))
    whole = _below(bits[:, shares:], limit)[:, :integers]
    for row in np.flatnonzero((whole < 0).any(axis=1)).tolist():  # more were refused than were to spare
        many = _keyed_bits(seed, [keys[row]], shares + 128 * (integers + 1))
        whole[row] = _below(many[:, shares:], limit)[0, :integers]
    return np.asarray((bits[:, :shares] >> np.uint64(11)) * 2.0**-53, np.float64), whole


def _keyed_bits(seed: int, keys: Sequence[NoiseKey], count: int) -> NDArray[np.uint64]:
    """Return the first 64-bit words of the stream of each key, a row for each."""
    bits = np.empty((len(keys), count), np.uint64)
    for row, drawn in enumerate(row_generators(seed, keys)):
        bits[row] = drawn.bit_generator.random_raw(count)
    return bits


def _below(bits: NDArray[np.uint64], limit: int) -> NDArray[np.int64]:
    """Return whole numbers below a limit, two of each word (Lemire 2019).

    Words that would make some numbers likelier are refused; -1 stands for what is missing then at the end of a row.
    """
    low = np.uint64(0xFFFFFFFF)
    halves = np.stack([bits & low, bits >> np.uint64(32)], axis=-1).reshape(len(bits), -1)
    product = halves * np.uint64(limit)
    refused = (product & low) < np.uint64((2**32 - limit) % limit)
    numbers = (product >> np.uint64(32)).astype(np.int64)
    if refused.any():
        numbers[refused] = -1
        numbers = np.take_along_axis(numbers, refused.argsort(axis=1, kind="stable"), axis=1)
    return numbers
