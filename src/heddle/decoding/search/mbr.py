"""Minimum Bayes risk (MBR) decoding: the candidate with the highest expected utility (Kumar & Byrne 2004).

The candidates stand for the model's distribution: samples count alike (Eikema & Aziz 2020), the candidates of a search
count by their probability. A utility says how good one candidate would be if another were the reference. A candidate
that is similar to many probable others wins, even if another single sequence is more probable.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from heddle.core import UsageError

Item = TypeVar("Item", bound=Hashable)  # a text, or ids in a tuple
Utility = Callable[[Item, Item], float]  # (candidate, reference) -> how good


def expected_utilities(
    candidates: Sequence[Item], utility: Utility[Item], logprobs: Sequence[float] | None = None
) -> dict[Item, float]:
    """Return the expected utility of each different candidate, best first, ties in the order given.

    With log-probabilities, in nats, candidates are weighted by them; without, each counts alike.
    """
    if not candidates:
        raise UsageError("mbr: want one candidate or more, got none")
    weights = _weights(candidates, logprobs)
    expected = {
        item: math.fsum(weight * utility(item, reference) for reference, weight in weights.items() if weight)
        for item in weights
    }
    return dict(sorted(expected.items(), key=lambda pair: -pair[1]))


def _weights(candidates: Sequence[Item], logprobs: Sequence[float] | None) -> dict[Item, float]:
    """Return the probability of each different candidate."""
    if logprobs is None:
        return {item: count / len(candidates) for item, count in Counter(candidates).items()}
    if len(logprobs) != len(candidates):
        raise UsageError(f"logprobs: want {len(candidates)}, one for each candidate, got {len(logprobs)}")
    highest = max(logprobs)
    if not math.isfinite(highest):
        raise UsageError(f"logprobs: want numbers, got {highest}")
    found: dict[Item, float] = {}
    for item, logprob in zip(candidates, logprobs, strict=True):
        found.setdefault(item, math.exp(logprob - highest))  # listed twice, a sequence is no more probable
    total = math.fsum(found.values())
    return {item: weight / total for item, weight in found.items()}


def token_f1(candidate: Sequence[Hashable], reference: Sequence[Hashable]) -> float:
    """Return the F1 of two sequences as bags of tokens; 1 for two empty ones."""
    if not candidate and not reference:
        return 1.0
    common = (Counter(candidate) & Counter(reference)).total()
    return 2 * common / (len(candidate) + len(reference))
