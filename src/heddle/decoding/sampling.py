"""Sampling: scores -> one id a row, each from a draw that is keyed by seed, sample and position alone.

The rule: the token at position t of sample n is decided by one number u(seed, n, t) in [0, 1), where t counts from the
first token of the prompt. So a row's result does not depend on its neighbours in the batch, nor on the device's own
generator, and a prompt that ends with tokens generated earlier goes on exactly as the earlier run did. Equal prompts
with equal seeds give equal texts; for several texts from one prompt, ask for several samples.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import DamageError, Purpose, key
from heddle.decoding import filters
from heddle.decoding.filters import Scores
from heddle.decoding.how import How

Chosen = Int[Tensor, " batch"]


def choose(scores: Scores, how: How, places: Sequence[tuple[int, int]]) -> Chosen:
    """Return one id for each row; a place is (sample, position)."""
    refuse_nan(scores)
    if how.temperature == 0:
        return scores.argmax(-1)
    draws = torch.tensor([draw(how.seed, *place) for place in places], dtype=torch.float64, device=scores.device)
    return invert(narrow(scores.double(), how).softmax(-1), draws)


def refuse_nan(scores: Scores) -> None:
    """Refuse scores that are no numbers: nothing can be chosen by them."""
    if torch.isnan(scores).any():
        raise DamageError("the model's scores are not numbers: its weights are damaged or its training diverged")


def narrow(scores: Scores, how: How) -> Scores:
    """Apply the filters that are asked for, in their order."""
    scores = filters.temper(scores, how.temperature)
    if how.top_k is not None:
        scores = filters.top_k(scores, how.top_k)
    if how.top_p is not None:
        scores = filters.top_p(scores, how.top_p)
    if how.min_p is not None:
        scores = filters.min_p(scores, how.min_p)
    return scores


def draw(seed: int, sample: int, position: int) -> float:
    """Return a number in [0, 1) that depends on nothing else: the key itself, which is a hash."""
    return (key(seed, Purpose.SAMPLING, sample, position) >> 10) / (1 << 53)


def invert(odds: Tensor, draws: Tensor) -> Chosen:
    """Return the first token at which the cumulated odds pass each draw; never one whose odds are 0."""
    reached = odds.cumsum(-1).masked_fill(odds == 0, 0)
    passed = reached > draws[:, None] * reached.amax(-1, keepdim=True)
    return passed.to(torch.uint8).argmax(-1)  # the first of the largest
