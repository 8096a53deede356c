"""Risk: of several candidates, the one that does best on average if any of them were the truth (Kumar & Byrne 2004).

The candidates stand for what the model believes: drawn from its odds, each counts alike (Eikema & Aziz 2020); of a list
that a search made, each counts by its probability. A utility says how good one candidate would be if another were
right. Whoever is like many others that are probable wins, even where the single most probable sequence is an odd one.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from heddle.core import UsageError

Item = TypeVar("Item", bound=Hashable)  # a text, or ids in a tuple
Utility = Callable[[Item, Item], float]  # (candidate, truth) -> how good


def expected_utilities(
    candidates: Sequence[Item], utility: Utility[Item], logprobs: Sequence[float] | None = None
) -> dict[Item, float]:
    """Return the expected utility of each candidate, best first; equal ones are one, and of equals the first leads.

    With log-probabilities, in nats, candidates count by these; without, each counts alike.
    """
    if not candidates:
        raise UsageError("risk: want one candidate or more, got none")
    shares = _shares(candidates, logprobs)
    expected = {
        item: math.fsum(share * utility(item, truth) for truth, share in shares.items() if share) for item in shares
    }
    return dict(sorted(expected.items(), key=lambda pair: -pair[1]))


def _shares(candidates: Sequence[Item], logprobs: Sequence[float] | None) -> dict[Item, float]:
    """Return the share of belief that each different candidate has."""
    if logprobs is None:
        return {item: count / len(candidates) for item, count in Counter(candidates).items()}
    if len(logprobs) != len(candidates):
        raise UsageError(f"logprobs: want {len(candidates)}, one for each candidate, got {len(logprobs)}")
    highest = max(logprobs)
    if not math.isfinite(highest):
        raise UsageError(f"logprobs: want numbers, got {highest}")
    found: dict[Item, float] = {}
    for item, logprob in zip(candidates, logprobs, strict=True):
        found.setdefault(item, math.exp(logprob - highest))  # the same sequence twice is no more probable
    total = math.fsum(found.values())
    return {item: weight / total for item, weight in found.items()}


def overlap(candidate: Sequence[Hashable], truth: Sequence[Hashable]) -> float:
    """Return how much two sequences share, whatever the order: the F1 of their tokens as bags; 1 for two empty ones."""
    if not candidate and not truth:
        return 1.0
    shared = (Counter(candidate) & Counter(truth)).total()
    return 2 * shared / (len(candidate) + len(truth))
