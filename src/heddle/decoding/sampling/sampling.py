"""Sampling: scores -> one id a row, each from a draw that is keyed by seed, sample and all that the row holds.

The rule: the next token of sample n is decided by one number u(seed, n, h) in [0, 1), where h stands for every token
before it, and the source if there is one. So a row's result does not depend on its neighbours in the batch, nor on the
device's own generator; rows of different prompts draw apart; and a prompt that ends with tokens generated earlier goes
on exactly as the earlier run did. Equal prompts with equal seeds give equal texts; for several texts from one prompt,
ask for several samples.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import DamageError, Purpose, key
from heddle.decoding.sampling import filters
from heddle.decoding.sampling.filters import NEG_INF, Logits
from heddle.decoding.sampling.generation_config import GenerationConfig
from heddle.decoding.sampling.strategies import MultinomialSampling

NextTokens = Int[Tensor, " batch"]

NO_TOKEN = -1  # in the place of an id, where nothing could be chosen
NAN_TOKEN = -2  # likewise, where a score is no number
DAMAGE = "the model's scores are not numbers: its weights are damaged or its training diverged"


class RowPosition(NamedTuple):
    """Where a row stands: in which sample, how many tokens it holds, and which."""

    sample: int
    length: int
    past: int | None  # what `past_of` makes of its tokens; None: nobody asks

    def then(self, id: int) -> "RowPosition":
        """Return where it stands after one more id."""
        return RowPosition(self.sample, self.length + 1, None if self.past is None else _longer(self.past, id))


def hash_ids(ids: Sequence[int], source: Sequence[int] | None = None) -> int:
    """Return a number that stands for ids, after a source if there is one; made id by id, it can go on with more."""
    return reduce(_longer, ids, 0 if source is None else key(reduce(_longer, source, 0), Purpose.SAMPLING, "source"))


def _longer(past: int, id: int) -> int:
    return key(past, Purpose.SAMPLING, int(id))


def choose(scores: Logits, config: GenerationConfig, places: Sequence[RowPosition]) -> NextTokens:
    """Return one id for each row; `NONE` where every score is -inf."""
    check_logits(scores)
    choice = config.choice
    if isinstance(choice, MultinomialSampling):
        draws = [draw(choice.seed, place) for place in places]
        numbers = torch.tensor(draws, dtype=torch.float64, device=scores.device)
        ids = invert(narrow(scores.double(), choice).softmax(-1), numbers)
        return ids.masked_fill(scores.amax(-1) == NEG_INF, NO_TOKEN)
    return greedy_tokens(scores)


def greedy_tokens(scores: Logits) -> NextTokens:
    """Return the best id of each row, of equals the first; `NONE` where every score is -inf, `BROKEN` beside NaN."""
    best, ids = scores.max(-1)
    return ids.masked_fill(best == NEG_INF, NO_TOKEN).masked_fill(~(best < float("inf")), NAN_TOKEN)


def check_token_ids(ids: Sequence[int]) -> None:
    """Refuse ids among which one was chosen by scores that are no numbers."""
    if NAN_TOKEN in ids:
        raise DamageError(DAMAGE)


def check_logits(scores: Logits) -> None:
    """Refuse scores that are no numbers: nothing can be chosen by them."""
    if not (scores.amax(-1) < float("inf")).all():  # of what is not a number nothing is less
        raise DamageError(DAMAGE)


def narrow(scores: Logits, choice: MultinomialSampling) -> Logits:
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


def draw(seed: int, place: RowPosition, use: str = "next") -> float:
    """Return a number in [0, 1) that depends on nothing else: the key itself, which is a hash."""
    assert place.past is not None
    return (key(seed, Purpose.SAMPLING, place.sample, place.past, use) >> 10) / (1 << 53)


def invert(odds: Tensor, draws: Tensor) -> NextTokens:
    """Return the first token at which the cumulated odds pass each draw; never one whose odds are 0."""
    reached = odds.cumsum(-1)
    whole = reached[..., -1:]
    wanted = torch.minimum(draws[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(reached, wanted, right=True)[..., 0]
