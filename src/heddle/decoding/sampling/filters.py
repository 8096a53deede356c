"""Filters: scores -> scores, each leaving fewer candidates; what is left out has score -inf.

Temperature (Ackley et al. 1985), top-k (Fan et al. 2018), top-p or nucleus (Holtzman et al. 2020), min-p (Nguyen et al.
2024), locally typical (Meister et al. 2022). Each takes the odds of what the one before left, so their order matters:
it is the one of this list. None of them leaves nothing. The best token stays but for `typical`, which may find it too
expected.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Logits = Float[Tensor, "... vocab"]

NEG_INF = float("-inf")
FEW = 256, 4096  # tokens among which an edge is looked for first


def temper(scores: Logits, temperature: float) -> Logits:
    """Divide by a temperature above 0: below 1 sharpens the odds, above 1 flattens them.

    The best score is made 0 first, which changes no odds: however low the temperature, it stays a number.
    """
    best = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    return (scores - best) / temperature


def top_k(scores: Logits, k: int) -> Logits:
    """Keep the k best; those level with the k-th stay too, so that the order of ids decides nothing."""
    if k >= scores.shape[-1]:
        return scores
    edge = scores.topk(k).values[..., -1:]
    return scores.masked_fill(scores < edge, NEG_INF)


def top_p(scores: Logits, p: float) -> Logits:
    """Keep the fewest most probable tokens whose mass reaches p; of equals, the lower id comes first."""
    return scores if p >= 1 else _nearest(scores, -scores, scores.softmax(-1), p)


def min_p(scores: Logits, p: float) -> Logits:
    """Keep the tokens at least p times as probable as the best one."""
    edge = scores.amax(-1, keepdim=True) + (math.log(p) if p else NEG_INF)
    return scores.masked_fill(scores < edge, NEG_INF)


def typical(scores: Logits, mass: float) -> Logits:
    """Keep the fewest tokens whose mass is enough, those first whose surprisal is nearest the expected one."""
    if mass >= 1:
        return scores
    logprobs = scores.log_softmax(-1)
    odds = logprobs.exp()
    entropy = -(odds * logprobs).nansum(-1, keepdim=True)  # what has no odds adds nothing, and is endlessly far
    return _nearest(scores, (logprobs + entropy).abs(), odds, mass)


def _nearest(scores: Logits, distance: Logits, odds: Logits, mass: float) -> Logits:
    """Keep the fewest tokens, by distance, whose odds reach a mass; where they are level at the edge, the lower ids."""
    count = scores.shape[-1]
    for most in (*(few for few in FEW if few < count), count):  # to sort them all takes far longer
        near, ids = distance.topk(most, largest=False)
        each = odds.gather(-1, ids)
        reached = each.cumsum(-1)
        if most == count or (reached[..., -1] >= mass).all():
            break
    kept = (reached - each < mass).sum(-1, keepdim=True)  # those before which there is less
    edge = near.gather(-1, kept.clamp(min=1) - 1)
    inside, level = distance < edge, distance == edge
    spare = kept - inside.sum(-1, keepdim=True)
    return scores.masked_fill(~(inside | (level & (level.cumsum(-1) <= spare))), NEG_INF)
