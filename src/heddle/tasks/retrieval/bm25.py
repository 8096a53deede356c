"""BM25 over inverted lists (Robertson & Zaragoza 2009), whose inverse document frequency is never negative."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, settings
from heddle.tasks.retrieval.index import Retriever, Scores

TERM = re.compile(r"\w+")


def terms_of(text: str) -> list[str]:
    """Return the words of a text, in lower case and without punctuation."""
    return TERM.findall(text.casefold())


@settings
class BM25(Config):
    """How words are weighted.

    k1: how fast further occurrences of a word in a text count for less.
    b: how much long texts are held against; 0: not at all.
    """

    k1: float = 1.2
    b: float = 0.75

    def __post_init__(self) -> None:
        if self.k1 < 0:
            raise ConfigError("k1", want="at least 0", got=self.k1)
        if not 0 <= self.b <= 1:
            raise ConfigError("b", want="0 to 1", got=self.b)


@dataclass(frozen=True)
class BM25Retriever(Retriever):
    """score = sum over the query's words of idf · tf (k1 + 1) / (tf + k1 (1 - b + b length / mean length)).

    Each word has a list of the texts that hold it, with its weight there: texts[starts[i]:starts[i + 1]].
    """

    numbers: Mapping[str, int]  # of the words
    starts: NDArray[np.int64]
    texts: NDArray[np.int32]
    weights: NDArray[np.float32]
    count: int
    config: BM25 = field(default_factory=BM25)

    kind = "bm25"
    floor = 0.0  # a text that shares no word is no neighbour

    @classmethod
    def build(cls, texts: Sequence[str], config: BM25 | None = None) -> "BM25Retriever":
        """Build the inverted lists of some texts."""
        config = BM25() if config is None else config
        counted = [Counter(terms_of(text)) for text in texts]
        numbers: dict[str, int] = {}
        words = np.array([numbers.setdefault(word, len(numbers)) for one in counted for word in one], np.int64)
        owners = np.repeat(np.arange(len(texts), dtype=np.int32), [len(one) for one in counted])
        times = np.array([times for one in counted for times in one.values()], np.float64)
        order = np.argsort(words, kind="stable")
        frequency = np.bincount(words, minlength=len(numbers))
        idf = np.log1p((len(texts) - frequency + 0.5) / (frequency + 0.5))
        lengths = np.array([one.total() for one in counted], np.float64)
        relative = lengths / max(1.0, float(lengths.mean())) if len(texts) else lengths
        damped = times + config.k1 * (1 - config.b + config.b * relative[owners])
        weights = idf[words] * times * (config.k1 + 1) / np.where(damped > 0, damped, 1)
        starts = np.concatenate(([0], np.cumsum(frequency)))
        return cls(numbers, starts, owners[order], weights[order].astype(np.float32), len(texts), config)

    def scores(self, queries: Sequence[str]) -> Scores:
        found = np.zeros((len(queries), self.count), np.float32)
        for row, query in zip(found, queries, strict=True):
            for word, times in Counter(terms_of(query)).items():
                number = self.numbers.get(word)
                if number is not None:
                    here = slice(self.starts[number], self.starts[number + 1])
                    row[self.texts[here]] += times * self.weights[here]
        return found

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        return {"starts": self.starts, "texts": self.texts, "weights": self.weights}
