"""A trigram model with interpolated Kneser-Ney smoothing (Kneser & Ney 1995; Chen & Goodman 1998), counted by sorting.

The baseline that neural rescorers are held against: words seen at least twice, the end of a line predicted too.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
BITS = np.uint64(21)  # of a word's number
UNKNOWN, BEGIN, END = 0, 1, 2
LEAST = 2  # times that a word must be seen


@dataclass(frozen=True)
class Level:
    """The n-grams of one length: how often each, and for each history how often it goes on, and in how many ways."""

    keys: Keys
    counts: NDArray[np.int64]
    histories: Keys
    totals: NDArray[np.int64]
    ways: NDArray[np.int64]
    discount: float

    @classmethod
    def of(cls, keys: Keys, counts: NDArray[np.int64]) -> "Level":
        """Sum up sorted n-grams by history, the word being the lowest bits."""
        histories, first = np.unique(keys >> BITS, return_index=True)
        once, twice = ((counts == n).sum() for n in (1, 2))
        discount = float(once / max(1, once + 2 * twice)) or 0.5
        ways = np.diff(np.append(first, len(keys)))
        return cls(keys, counts, histories, np.add.reduceat(counts, first), ways, discount)

    def share(self, key: int, below: float) -> float:
        """Return the probability of an n-gram's word, given that of the shorter one."""
        at = _place(self.histories, key >> int(BITS))
        if at is None:
            return below
        found = _place(self.keys, key)
        count = 0 if found is None else int(self.counts[found])
        kept = max(0.0, count - self.discount)
        return (kept + self.discount * int(self.ways[at]) * below) / int(self.totals[at])


def _place(keys: Keys, key: int) -> int | None:
    at = int(np.searchsorted(keys, np.uint64(key)))
    return at if at < len(keys) and int(keys[at]) == key else None


@dataclass(frozen=True)
class Trigram:
    """P(word | two before), each level giving part of its mass to the next shorter one."""

    numbers: dict[str, int]
    levels: tuple[Level, Level, Level]

    @classmethod
    def learn(cls, lines: Callable[[], Iterable[Sequence[str]]]) -> "Trigram":
        """Count lines, read twice; of the shorter n-grams, in how many ways they go on backwards."""
        counts = Counter(word for line in lines() for word in line)
        known = [word for word, count in counts.most_common() if count >= LEAST]
        numbers = {word: number for number, word in enumerate(known, 3)}
        ids = array("I")
        for line in lines():
            ids.extend((BEGIN, BEGIN, *(numbers.get(word, UNKNOWN) for word in line), END))
        row = np.frombuffer(ids, dtype=np.uint32).astype(np.uint64)
        keys = (row[:-2] << (BITS + BITS)) | (row[1:-1] << BITS) | row[2:]
        three, often = np.unique(keys[row[2:] != BEGIN], return_counts=True)
        two, ways = np.unique(three & np.uint64((1 << 42) - 1), return_counts=True)
        one, more = np.unique(two & np.uint64((1 << 21) - 1), return_counts=True)
        return cls(numbers, (Level.of(one, more), Level.of(two, ways), Level.of(three, often)))

    def logprob(self, words: Sequence[str]) -> float:
        """Return the log-probability in nats of a line and its end."""
        ids = [BEGIN, BEGIN, *(self.numbers.get(word, UNKNOWN) for word in words), END]
        return math.fsum(math.log(self._next(*three)) for three in zip(ids, ids[1:], ids[2:], strict=False))

    def _next(self, first: int, second: int, word: int) -> float:
        below = 1 / (len(self.numbers) + 2)
        for level, history in zip(self.levels, (0, second, first << int(BITS) | second), strict=True):
            below = level.share(history << int(BITS) | word, below)
        return below
