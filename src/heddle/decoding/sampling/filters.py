"""Sampling filters: temperature, top-k sampling, nucleus sampling (top-p), min-p and locally typical sampling.

Each maps logits to logits in which the tokens that it removes are -inf. Temperature: Ackley et al. 1985; top-k: Fan et
al. 2018; top-p: Holtzman et al. 2020; min-p: Nguyen et al. 2024; typical: Meister et al. 2022. Each filter uses the
probabilities that the previous one left, so their order matters: it is the order of this list. No filter removes all
tokens. Only `typical` may remove the most probable one.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Logits = Float[Tensor, "... vocab"]

NEG_INF = float("-inf")
TOPK_SIZES = 256, 4096  # how many tokens are sorted first; sorting the whole vocabulary takes far longer


def apply_temperature(logits: Logits, temperature: float) -> Logits:
    """Divide by a temperature above 0: below 1 sharpens the distribution, above 1 flattens it.

    The largest logit is first shifted to 0, which changes no probability and avoids overflow at low temperatures.
    """
    best = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
    return (logits - best) / temperature


def top_k(logits: Logits, k: int) -> Logits:
    """Top-k sampling: keep the k most probable tokens, and those equal to the k-th, so that ids break no tie."""
    if k >= logits.shape[-1]:
        return logits
    threshold = logits.topk(k).values[..., -1:]
    return logits.masked_fill(logits < threshold, NEG_INF)


def top_p(logits: Logits, p: float) -> Logits:
    """Nucleus sampling (top-p): keep the fewest most probable tokens with total probability p; ties by lower id."""
    return logits if p >= 1 else _keep_mass(logits, -logits, logits.softmax(-1), p)


def min_p(logits: Logits, p: float) -> Logits:
    """Min-p sampling: keep the tokens at least p times as probable as the best one."""
    threshold = logits.amax(-1, keepdim=True) + (math.log(p) if p else NEG_INF)
    return logits.masked_fill(logits < threshold, NEG_INF)


def typical(logits: Logits, mass: float) -> Logits:
    """Locally typical sampling: keep the tokens whose surprisal is closest to the entropy, up to a total mass."""
    if mass >= 1:
        return logits
    logprobs = logits.log_softmax(-1)
    probs = logprobs.exp()
    entropy = -(probs * logprobs).nansum(-1, keepdim=True)  # 0 * -inf is NaN and counts as 0
    return _keep_mass(logits, (logprobs + entropy).abs(), probs, mass)


def _keep_mass(logits: Logits, distance: Logits, probs: Logits, mass: float) -> Logits:
    """Keep the fewest tokens, by increasing distance, whose probabilities add up to a mass; ties by lower id."""
    vocab = logits.shape[-1]
    for size in (*(size for size in TOPK_SIZES if size < vocab), vocab):
        nearest, ids = distance.topk(size, largest=False)
        each = probs.gather(-1, ids)
        cumulative = each.cumsum(-1)
        if size == vocab or (cumulative[..., -1] >= mass).all():
            break
    kept = (cumulative - each < mass).sum(-1, keepdim=True)  # tokens before which there is less than the mass
    threshold = nearest.gather(-1, kept.clamp(min=1) - 1)
    inside, tied = distance < threshold, distance == threshold
    ties_kept = kept - inside.sum(-1, keepdim=True)
    return logits.masked_fill(~(inside | (tied & (tied.cumsum(-1) <= ties_kept))), NEG_INF)
