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
from heddle.decoding.choices import DrawConfig
from heddle.decoding.filters import NEVER, Scores
from heddle.decoding.how import How

Chosen = Int[Tensor, " batch"]
Place = tuple[int, int]  # (sample, position)

NONE = -1  # in the place of an id, where nothing could be chosen


def choose(scores: Scores, how: How, places: Sequence[Place]) -> Chosen:
    """Return one id for each row; `NONE` where every score is -inf."""
    refuse_nan(scores)
    choice = how.choice
    best, ids = scores.max(-1)  # of equals the first
    if isinstance(choice, DrawConfig):
        draws = torch.tensor([draw(choice.seed, *place) for place in places], dtype=torch.float64, device=scores.device)
        ids = invert(narrow(scores.double(), choice).softmax(-1), draws)
    return ids.masked_fill(best == NEVER, NONE)


def refuse_nan(scores: Scores) -> None:
    """Refuse scores that are no numbers: nothing can be chosen by them."""
    if not (scores.amax(-1) < float("inf")).all():  # of what is not a number nothing is less
        raise DamageError("the model's scores are not numbers: its weights are damaged or its training diverged")


def narrow(scores: Scores, choice: DrawConfig) -> Scores:
    """Apply the filters that are asked for, in their order."""
    scores = filters.temper(scores, choice.temperature)
    if choice.top_k is not None:
        scores = filters.top_k(scores, choice.top_k)
    if choice.top_p is not None:
        scores = filters.top_p(scores, choice.top_p)
    if choice.min_p is not None:
        scores = filters.min_p(scores, choice.min_p)
    if choice.typical is not None:
        scores = filters.typical(scores, choice.typical)
    return scores


def draw(seed: int, sample: int, position: int) -> float:
    """Return a number in [0, 1) that depends on nothing else: the key itself, which is a hash."""
    return (key(seed, Purpose.SAMPLING, sample, position) >> 10) / (1 << 53)


def invert(odds: Tensor, draws: Tensor) -> Chosen:
    """Return the first token at which the cumulated odds pass each draw; never one whose odds are 0."""
    reached = odds.cumsum(-1)
    whole = reached[..., -1:]
    wanted = torch.minimum(draws[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(reached, wanted, right=True)[..., 0]
