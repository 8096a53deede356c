"""Candidate generation for spelling correction: known words within a small edit distance, or that sound alike.

The edit distance is that of Damerau (1964): one letter inserted, deleted or substituted, or two adjacent letters
transposed. It is computed for all words of about the right length and letters at once.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from heddle.tasks.correcting.lexicon import Lexicon
from heddle.tasks.correcting.metaphone import phonetic_key

MAX_LETTERS = 24  # letters; longer strings are hardly words
BITS = np.array([bin(i).count("1") for i in range(1 << 16)], dtype=np.uint8)
SHORT = 4  # shorter words are searched for one edit only: almost everything is within two
MAX_EDITS_BY_SOUND = 4  # at most, for words that sound alike
TOO_FAR = 99


@dataclass(frozen=True)
class Neighbour:
    """A known word and its edit distance from the written one."""

    word: str
    edits: int


@final
class NeighbourIndex:
    """An index of all known words, to find those near a written word."""

    def __init__(self, words: Lexicon) -> None:
        self._words = sorted((w for w in words.counts if len(w) <= MAX_LETTERS), key=len)
        self._logprobs = np.array([words.logprob(w) for w in self._words])
        self._lengths = np.array([len(w) for w in self._words])
        self._codes = np.zeros((len(self._words), MAX_LETTERS), np.uint32)
        for row, word in enumerate(self._words):
            self._codes[row, : len(word)] = [ord(c) for c in word]
        self._masks = _masks(self._codes)

    @cached_property
    def _sounds(self) -> dict[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for row, word in enumerate(self._words):
            found[phonetic_key(word)].append(row)
        return found

    def find(self, written: str, most: int, edits: int = 2) -> list[Neighbour]:
        """Return at most `most` known words within `edits`, or that sound alike; never the written word itself.

        They are ranked by a rough score of distance and frequency, best first.
        """
        if not written or len(written) > MAX_LETTERS:
            return []
        edits = min(edits, 1 if len(written) < SHORT else 2)
        code = np.array([ord(c) for c in written], np.uint32)
        low, high = np.searchsorted(self._lengths, [len(written) - edits, len(written) + edits + 1])
        differing = self._masks[low:high] ^ _masks(code[None])[0]
        bits = BITS[differing & 0xFFFF] + BITS[differing >> 16]
        rows = np.flatnonzero(bits <= 2 * edits) + low
        distances = _distances(code, self._codes[rows], self._lengths[rows], edits)
        alike = np.array(self._sounds.get(phonetic_key(written), []), dtype=np.int64)
        alike = alike[np.abs(self._lengths[alike] - len(written)) <= MAX_EDITS_BY_SOUND]
        far = _distances(code, self._codes[alike], self._lengths[alike], MAX_EDITS_BY_SOUND)
        rows, distances = np.concatenate([rows, alike]), np.concatenate([distances, far])
        kept = (distances > 0) & (distances < TOO_FAR)
        rows, first = np.unique(rows[kept], return_index=True)
        distances = distances[kept][first]
        scores = self._logprobs[rows] - 5.0 * distances
        best = np.argsort(-scores, kind="stable")[:most]
        return [Neighbour(self._words[rows[i]], int(distances[i])) for i in best]


def _masks(codes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the set of letters of each row as bits; other characters share bits, which cannot lose a match."""
    bits = np.where(codes > 0, np.left_shift(np.uint32(1), codes & 31), 0).astype(np.uint32)
    found: NDArray[np.uint32] = np.bitwise_or.reduce(bits, axis=1)
    return found


def _distances(
    code: NDArray[np.uint32], codes: NDArray[np.uint32], lengths: NDArray[Any], edits: int
) -> NDArray[np.int64]:
    """Return the edit distance between one word and each of many; more than `edits` becomes TOO_FAR."""
    rows = len(codes)
    if not rows:
        return np.zeros(0, np.int64)
    longest = int(lengths.max())
    letters = codes[:, :longest].T
    table = np.full((len(code) + 1, longest + 1, rows), TOO_FAR, np.uint8)
    table[0] = np.arange(longest + 1, dtype=np.uint8)[:, None]
    for i in range(1, len(code) + 1):
        table[i, 0] = i
        for j in range(max(1, i - edits), min(longest, i + edits) + 1):
            same = letters[j - 1] == code[i - 1]
            best = np.minimum(table[i - 1, j], table[i, j - 1]) + 1
            np.minimum(best, table[i - 1, j - 1] + ~same, out=best, casting="unsafe")
            if i > 1 and j > 1:
                transposed = (letters[j - 2] == code[i - 1]) & (letters[j - 1] == code[i - 2])
                best = np.where(transposed, np.minimum(best, table[i - 2, j - 2] + 1), best)
            table[i, j] = best
    found = table[len(code), lengths, np.arange(rows)].astype(np.int64)
    return np.where(found > edits, TOO_FAR, found)
