"""An index of pairs: the nearest ones of a query that have another context, and come from none of its groups."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heddle.core import UsageError, check_at_least
from heddle.tasks.retrieval.entries import Entry, Query, normalized

Scores = NDArray[np.float32]
BATCH = 64  # queries scored at once


class Retriever(ABC):
    """Scores of the texts of an index for a query; the larger, the nearer."""

    kind: ClassVar[str]
    floor: ClassVar[float]  # a text with no larger score is no neighbour

    @abstractmethod
    def scores(self, queries: Sequence[str]) -> Scores:
        """Return the score of each text, a row for each query."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what is saved of it."""


@dataclass(frozen=True)
class Neighbour:
    """A pair near a query."""

    entry: Entry
    score: float


@dataclass(frozen=True)
class PairIndex:
    """Pairs, and the retriever of their distinct texts, in the order in which they first occur."""

    entries: tuple[Entry, ...]
    retriever: Retriever

    @cached_property
    def _owners(self) -> dict[str, list[int]]:
        """Return the entries of each distinct text."""
        found: dict[str, list[int]] = {}
        for number, entry in enumerate(self.entries):
            found.setdefault(normalized(entry.text), []).append(number)
        return found

    @cached_property
    def _each(self) -> list[list[int]]:
        return list(self._owners.values())

    @cached_property
    def _rank(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self._owners)}

    def neighbours(self, queries: Sequence[Query], k: int = 1) -> Iterator[list[Neighbour]]:
        """Yield at most `k` neighbours of each query, nearest first, each with a text of its own.

        A neighbour never has the query's text, whatever its case and spaces, and shares none of its groups. Of several
        pairs with one text, the first is taken.
        """
        check_at_least(1, k=k)
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            for query, scores in zip(batch, self.retriever.scores([one.text for one in batch]), strict=True):
                yield self._nearest(query, scores, k)

    def _nearest(self, query: Query, scores: Scores, k: int) -> list[Neighbour]:
        own = self._rank.get(normalized(query.text))
        found: list[Neighbour] = []
        for number in _descending(scores, 4 * k + 32):
            if number == own:
                continue
            if not scores[number] > self.retriever.floor:
                break
            allowed = (self.entries[i] for i in self._each[number] if not _share(self.entries[i], query))
            entry = next(allowed, None)
            if entry is not None:
                found.append(Neighbour(entry, float(scores[number])))
            if len(found) == k:
                break
        return found


def distinct_texts(entries: Sequence[Entry]) -> list[str]:
    """Return the texts that an index of these entries retrieves, each once."""
    first: dict[str, str] = {}
    for entry in entries:
        first.setdefault(normalized(entry.text), entry.text)
    if not first:
        raise UsageError("index: want one pair or more, got none")
    return list(first.values())


def _share(entry: Entry, query: Query) -> bool:
    return any(own == other for own, other in zip(entry.groups, query.groups, strict=False))


def _descending(scores: Scores, many: int) -> Iterator[int]:
    """Yield numbers of texts by falling score, ties in their order; most callers want only the first ones."""
    if many < len(scores):
        edge = np.partition(scores, len(scores) - many)[len(scores) - many]
        best = np.flatnonzero(scores >= edge)
        yield from best[np.argsort(-scores[best], kind="stable")].tolist()
        rest = np.flatnonzero(scores < edge)
        yield from rest[np.argsort(-scores[rest], kind="stable")].tolist()
        return
    yield from np.argsort(-scores, kind="stable").tolist()
