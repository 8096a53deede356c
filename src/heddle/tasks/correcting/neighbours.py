"""Nearby: the known words that a written word could have been meant as: by few edits, or by sound.

Edits are those of Damerau (1964): a letter more, less or another, or two neighbours crossed. Distances to all words of
about the right length and letters are computed side by side.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from heddle.tasks.correcting.lexicon import Lexicon
from heddle.tasks.correcting.metaphone import sound

LONGEST = 24  # letters; longer words are hardly words
BITS = np.array([bin(i).count("1") for i in range(1 << 16)], dtype=np.uint8)
SHORT = 4  # letters below which one edit only is looked for: everything is near a short word
BY_SOUND = 4  # edits up to which words of one sound count as near
NONE = 99


@dataclass(frozen=True)
class Neighbour:
    """A known word and its distance from what was written."""

    word: str
    edits: int


@final
class NeighbourIndex:
    """Finds the known words near a written one."""

    def __init__(self, words: Lexicon) -> None:
        self._words = sorted((w for w in words.counts if len(w) <= LONGEST), key=len)
        self._popular = np.array([words.logprob(w) for w in self._words])
        self._lengths = np.array([len(w) for w in self._words])
        self._codes = np.zeros((len(self._words), LONGEST), np.uint32)
        for row, word in enumerate(self._words):
            self._codes[row, : len(word)] = [ord(c) for c in word]
        self._masks = _masks(self._codes)

    @cached_property
    def _sounds(self) -> dict[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for row, word in enumerate(self._words):
            found[sound(word)].append(row)
        return found

    def near(self, written: str, most: int, edits: int = 2) -> list[Neighbour]:
        """Return known words other than the written one within some edits, or of like sound: most likely first.

        At most `most` are given, by a rough mark of distance and frequency.
        """
        if not written or len(written) > LONGEST:
            return []
        edits = min(edits, 1 if len(written) < SHORT else 2)
        code = np.array([ord(c) for c in written], np.uint32)
        low, high = np.searchsorted(self._lengths, [len(written) - edits, len(written) + edits + 1])
        apart = self._masks[low:high] ^ _masks(code[None])[0]
        bits = BITS[apart & 0xFFFF] + BITS[apart >> 16]
        rows = np.flatnonzero(bits <= 2 * edits) + low
        distances = _distances(code, self._codes[rows], self._lengths[rows], edits)
        heard = np.array(self._sounds.get(sound(written), []), dtype=np.int64)
        heard = heard[np.abs(self._lengths[heard] - len(written)) <= BY_SOUND]
        far = _distances(code, self._codes[heard], self._lengths[heard], BY_SOUND)
        rows, distances = np.concatenate([rows, heard]), np.concatenate([distances, far])
        kept = (distances > 0) & (distances < NONE)
        rows, first = np.unique(rows[kept], return_index=True)
        distances = distances[kept][first]
        marks = self._popular[rows] - 5.0 * distances
        best = np.argsort(-marks, kind="stable")[:most]
        return [Neighbour(self._words[rows[i]], int(distances[i])) for i in best]


def _masks(codes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return which letters each row holds, as bits; other signs share bits, which loses no match."""
    bits = np.where(codes > 0, np.left_shift(np.uint32(1), codes & 31), 0).astype(np.uint32)
    found: NDArray[np.uint32] = np.bitwise_or.reduce(bits, axis=1)
    return found


def _distances(
    code: NDArray[np.uint32], codes: NDArray[np.uint32], lengths: NDArray[Any], edits: int
) -> NDArray[np.int64]:
    """Return the edits between one word and each of many; those with more than asked for are NONE."""
    rows = len(codes)
    if not rows:
        return np.zeros(0, np.int64)
    wide = int(lengths.max())
    letters = codes[:, :wide].T
    table = np.full((len(code) + 1, wide + 1, rows), NONE, np.uint8)
    table[0] = np.arange(wide + 1, dtype=np.uint8)[:, None]
    for i in range(1, len(code) + 1):
        table[i, 0] = i
        for j in range(max(1, i - edits), min(wide, i + edits) + 1):
            same = letters[j - 1] == code[i - 1]
            best = np.minimum(table[i - 1, j], table[i, j - 1]) + 1
            np.minimum(best, table[i - 1, j - 1] + ~same, out=best, casting="unsafe")
            if i > 1 and j > 1:
                crossed = (letters[j - 2] == code[i - 1]) & (letters[j - 1] == code[i - 2])
                best = np.where(crossed, np.minimum(best, table[i - 2, j - 2] + 1), best)
            table[i, j] = best
    found = table[len(code), lengths, np.arange(rows)].astype(np.int64)
    return np.where(found > edits, NONE, found)
