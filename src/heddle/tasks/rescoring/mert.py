"""Minimum error rate training (MERT, Och 2003): feature weights that optimize a corpus metric, by exact line searches.

Along a line in weight space, the total of each candidate is a linear function, and the chosen candidate follows the
upper envelope of its list. So the corpus metric changes at finitely many points, which are found for all lists at
once; between them it is constant.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heddle.core import DataError
from heddle.tasks.metrics import CorpusMetric, MetricCounts

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
ROUNDS = 50  # over all weights, at most; it ends with a round that changes nothing


@dataclass(frozen=True)
class NBestArrays:
    """N-best lists as padded arrays: the features of each candidate, and its metric counts if there are references."""

    features: Floats  # (list, candidate, feature)
    real: NDArray[np.bool_]  # (list, candidate)
    counts: MetricCounts | None = None  # (list, candidate, count)

    @classmethod
    def of(cls, features: Sequence[Floats], counts: Sequence[MetricCounts] | None = None) -> "NBestArrays":
        """Pad lists of candidates to the longest."""
        longest = max(map(len, features))
        real = np.array([[i < len(rows) for i in range(longest)] for rows in features])
        return cls(_padded(features, longest), real, None if counts is None else _padded(counts, longest))

    def choose(self, weights: Floats) -> Indices:
        """Return the index of the best candidate of each list, the first of equal ones."""
        totals = np.where(self.real, self.features @ weights, -np.inf)
        return np.asarray(totals.argmax(axis=1))

    def gathered(self, chosen: Indices) -> MetricCounts:
        """Return the metric counts of the chosen candidates, a row for each list."""
        assert self.counts is not None
        return np.asarray(self.counts[np.arange(len(chosen)), chosen])

    def oracle(self, measure: CorpusMetric) -> Indices:
        """Return the index of the candidate of each list that is best by itself."""
        assert self.counts is not None
        costs = np.where(self.real, measure.cost(self.counts), np.inf)
        return np.asarray(costs.argmin(axis=1))


def _padded(rows: Sequence[Floats], longest: int) -> Floats:
    out = np.zeros((len(rows), longest, rows[0].shape[1]))
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


@dataclass(frozen=True)
class Mert:
    """Coordinate descent with exact line searches over the weights that have bounds."""

    lists: NBestArrays
    measure: CorpusMetric
    bounds: dict[int, tuple[float, float]]  # by feature

    def run(self, starts: Sequence[Floats]) -> Floats:
        """Return the weights of the least cost found from several starts."""
        if not len(self.lists.features):
            raise DataError("tune: want one list or more with a reference, found none")
        found = [self._descend(np.array(start, dtype=np.float64)) for start in starts]
        return min(found, key=self.cost)

    def cost(self, weights: Floats) -> float:
        """Return the cost of the candidates chosen by some weights."""
        return float(self.measure.cost(self.lists.gathered(self.lists.choose(weights)).sum(axis=0)))

    def _descend(self, weights: Floats) -> Floats:
        least = self.cost(weights)
        for _ in range(ROUNDS):
            before = least
            for direction in self._directions(len(weights)):
                step, cost = self.line(weights, direction)
                if cost < least:
                    weights, least = weights + step * direction, cost
            if least == before:
                break
        return weights

    def _directions(self, features: int) -> Iterator[Floats]:
        """Yield search directions: each weight alone, then one up and another down."""
        each = dict(zip(self.bounds, np.eye(features)[list(self.bounds)], strict=True))
        yield from each.values()
        yield from (each[i] - each[j] for i, j in itertools.combinations(self.bounds, 2))

    def line(self, weights: Floats, direction: Floats) -> tuple[float, float]:
        """Return the best step in a direction, to the middle of the widest interval of least cost, and that cost."""
        low, high = self._step_interval(weights, direction)
        features = self.lists.features
        envelope = _UpperEnvelope(features @ weights, features @ direction, self.lists.real, low, high)
        assert self.lists.counts is not None
        sums = self.lists.gathered(envelope.first).sum(axis=0)
        moves = self.lists.counts[envelope.lists, envelope.after] - self.lists.counts[envelope.lists, envelope.before]
        sums = np.concatenate([sums[None], sums + np.cumsum(moves, axis=0)])
        edges = np.concatenate([[low], envelope.places, [high]])
        widths = np.diff(edges)
        costs = np.where(widths > 0, self.measure.cost(sums), np.inf)
        best = np.flatnonzero(costs == costs.min())
        chosen = best[widths[best].argmax()]
        return float(edges[chosen] + widths[chosen] / 2), float(costs[chosen])

    def _step_interval(self, weights: Floats, direction: Floats) -> tuple[float, float]:
        """Return the interval of steps in which every weight stays within its bounds."""
        ends = [
            sorted(((low - weights[i]) / direction[i], (high - weights[i]) / direction[i]))
            for i, (low, high) in self.bounds.items()
            if direction[i]
        ]
        return max(low for low, _ in ends), min(high for _, high in ends)


@dataclass(frozen=True)
class _UpperEnvelope:
    """The upper envelope of each list's lines over an interval: its first line, and where it changes to another."""

    heights: Floats  # at 0
    slopes: Floats
    real: NDArray[np.bool_]
    low: float
    high: float

    @cached_property
    def first(self) -> Indices:
        """Return the top line at the lower end, the steepest of equal ones."""
        totals = np.where(self.real, self.heights + self.low * self.slopes, -np.inf)
        top = totals >= totals.max(axis=1, keepdims=True)
        return np.asarray(np.where(top, self.slopes, -np.inf).argmax(axis=1))

    @cached_property
    def _changes(self) -> tuple[Floats, Indices, Indices, Indices]:
        """Return each change of line in order: where, in which list, from which line, to which."""
        found: list[tuple[Floats, Indices, Indices, Indices]] = []
        lists, current, at = np.arange(len(self.first)), self.first, np.full(len(self.first), self.low)
        while len(lists):
            heights, slopes = self.heights[lists], self.slopes[lists]
            own = np.arange(len(lists)), current
            rise = np.where(self.real[lists], slopes - slopes[own][:, None], 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                places = np.where(rise > 0, (heights[own][:, None] - heights) / rise, np.inf)
            soonest = places.min(axis=1)
            steepest = np.where(places <= soonest[:, None], slopes, -np.inf).argmax(axis=1)
            going = soonest < self.high
            lists, before, current = lists[going], current[going], steepest[going]
            at = np.maximum(soonest[going], at[going])  # rounding errors may place it a little earlier
            found.append((at, lists, before, current))
        places, owners, before, after = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(places, kind="stable")
        return places[order], owners[order], before[order], after[order]

    @property
    def places(self) -> Floats:
        return self._changes[0]

    @property
    def lists(self) -> Indices:
        return self._changes[1]

    @property
    def before(self) -> Indices:
        return self._changes[2]

    @property
    def after(self) -> Indices:
        return self._changes[3]
