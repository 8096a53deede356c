"""Filters: scores -> scores, each leaving fewer candidates; what is left out has score -inf.

Temperature (Ackley et al. 1985), top-k (Fan et al. 2018), top-p or nucleus (Holtzman et al. 2020), min-p (Nguyen et al.
2024).
"""

import torch
from jaxtyping import Float
from torch import Tensor

Scores = Float[Tensor, "... vocab"]

NEVER = float("-inf")


def temper(scores: Scores, temperature: float) -> Scores:
    """Divide by a temperature above 0: below 1 sharpens the odds, above 1 flattens them."""
    return scores / temperature


def top_k(scores: Scores, k: int) -> Scores:
    """Keep the k best; those level with the k-th stay too, so that the order of ids decides nothing."""
    if k >= scores.shape[-1]:
        return scores
    edge = scores.topk(k).values[..., -1:]
    return scores.masked_fill(scores < edge, NEVER)


def top_p(scores: Scores, p: float) -> Scores:
    """Keep the fewest most probable tokens whose mass reaches p; of equals, the lower id comes first."""
    if p >= 1:
        return scores
    ranked, order = scores.sort(descending=True, stable=True)
    odds = ranked.softmax(-1)
    before = odds.cumsum(-1) - odds  # the mass of all that rank higher: nothing for the best, which thus always stays
    dropped = before >= p
    return scores.masked_fill(torch.empty_like(dropped).scatter(-1, order, dropped), NEVER)


def min_p(scores: Scores, p: float) -> Scores:
    """Keep the tokens at least p times as probable as the best one."""
    odds = scores.softmax(-1)
    return scores.masked_fill(odds < p * odds.amax(-1, keepdim=True), NEVER)
