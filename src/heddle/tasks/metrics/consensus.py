"""Consensus of captions: CIDEr-D (Vedantam, Zitnick & Parikh 2015), by n-grams weighted by how rare they are.

How well a caption agrees with what several people wrote of the same picture. N-grams that occur with many pictures
count little (tf-idf), repeated ones no more often than in the reference, and another length is punished. A caption that
equals all its references scores 10, unless all of its n-grams occur with every picture.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from heddle.core import DataError

ORDERS = 4
SPREAD = 6.0  # words of difference in length: the deviation of the penalty
WORD = re.compile(r"\w+(?:'\w+)?")
NGram = tuple[str, ...]
Vectors = tuple[dict[NGram, float], ...]  # of each order


def caption_words(text: str) -> list[str]:
    """Return the words of a caption, in small letters and without punctuation."""
    return WORD.findall(text.lower())


def consensus_scores(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return CIDEr-D of each candidate, from 0 to 10; their mean is that of the corpus.

    The rarity of n-grams is counted over the references of all pictures, so scores of different sets do not compare.
    """
    if len(candidates) != len(references):
        raise DataError(f"references: want {len(candidates)}, one list for each caption, found {len(references)}")
    if any(not several for several in references):
        raise DataError("references: want one or more for each caption, found none")
    words = [[_ngrams(caption_words(one)) for one in several] for several in references]
    seen = Counter(gram for several in words for gram in {gram for counts in several for gram in counts})
    rarity = {gram: math.log(len(references) / count) for gram, count in seen.items()}
    most = math.log(len(references))
    return [
        _score(_Weighted(_ngrams(caption_words(text)), rarity, most), [_Weighted(one, rarity, most) for one in several])
        for text, several in zip(candidates, words, strict=True)
    ]


def _ngrams(words: Sequence[str]) -> Counter[NGram]:
    return Counter(tuple(words[i : i + n]) for n in range(1, ORDERS + 1) for i in range(len(words) - n + 1))


class _Weighted:
    """The n-grams of a caption by order, weighted by count and rarity, with the norms and the length in words."""

    def __init__(self, counts: Counter[NGram], rarity: Mapping[NGram, float], most: float) -> None:
        self.vectors: Vectors = tuple({} for _ in range(ORDERS))
        for gram, count in counts.items():
            self.vectors[len(gram) - 1][gram] = count * rarity.get(gram, most)
        self.norms = [math.sqrt(sum(value * value for value in vector.values())) for vector in self.vectors]
        self.length = sum(count for gram, count in counts.items() if len(gram) == 1)


def _score(candidate: _Weighted, references: Sequence[_Weighted]) -> float:
    """Return ten times the mean similarity over orders and references."""
    total = 0.0
    for reference in references:
        penalty = math.exp(-((candidate.length - reference.length) ** 2) / (2 * SPREAD**2))
        for n in range(ORDERS):
            shared = sum(
                min(value, reference.vectors[n].get(gram, 0.0)) * reference.vectors[n].get(gram, 0.0)
                for gram, value in candidate.vectors[n].items()
            )
            norm = candidate.norms[n] * reference.norms[n]
            total += penalty * shared / norm if norm else 0.0
    return 10 * total / (ORDERS * len(references))
