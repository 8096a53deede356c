"""Random draws of sampling, keyed by seed, sample and all tokens before: they depend on nothing else.

The next token of sample n is decided by one number u(seed, n, h) in [0, 1), where h is a hash of every token before it,
and of the source if there is one. So a row's result depends neither on the other rows of its batch nor on the device's
generator; rows of different prompts draw independently; and a prompt that ends with tokens generated earlier continues
exactly as the earlier run did. Equal prompts with equal seeds give equal texts; `samples` gives several per prompt.
"""

import hashlib
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import DamageError, Purpose, key
from heddle.decoding.sampling.filters import NEG_INF, Logits

NextTokens = Int[Tensor, " batch"]

NO_TOKEN = -1  # in the place of an id: every logit is -inf
NAN_TOKEN = -2  # in the place of an id: a logit is not a number
NAN_LOGITS_MESSAGE = "the model's scores are not numbers: its weights are damaged or its training diverged"


class RowPosition(NamedTuple):
    """Where a row stands: its sample, how many tokens it has, and a hash of them."""

    sample: int
    length: int
    past: int | None  # `hash_ids` of its tokens; None: nothing is drawn

    def append(self, id: int) -> "RowPosition":
        """Return the position after one more id."""
        return RowPosition(self.sample, self.length + 1, None if self.past is None else _extend_hash(self.past, id))


def hash_ids(ids: Sequence[int], source: Sequence[int] | Tensor | None = None) -> int:
    """Return a hash of ids, after a source if there is one, ids or features; it can be extended id by id."""
    if isinstance(source, Tensor):
        source = list(hashlib.blake2b(source.double().cpu().numpy().tobytes(), digest_size=8).digest())
    start = 0 if source is None else key(reduce(_extend_hash, source, 0), Purpose.SAMPLING, "source")
    return reduce(_extend_hash, ids, start)


def _extend_hash(past: int, id: int) -> int:
    return key(past, Purpose.SAMPLING, int(id))


def uniform(seed: int, position: RowPosition, use: str = "next") -> float:
    """Return a number in [0, 1) from the bits of the key, which is a hash."""
    assert position.past is not None
    return (key(seed, Purpose.SAMPLING, position.sample, position.past, use) >> 10) / (1 << 53)


def inverse_cdf(probs: Tensor, uniforms: Tensor) -> NextTokens:
    """Return the first token at which the cumulative probability exceeds each number; never one of probability 0."""
    cumulative = probs.cumsum(-1)
    total = cumulative[..., -1:]
    wanted = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, wanted, right=True)[..., 0]


def greedy_tokens(logits: Logits) -> NextTokens:
    """Return the most probable id of each row, ties by lower id; `NO_TOKEN` if all are -inf, `NAN_TOKEN` with NaN."""
    best, ids = logits.max(-1)
    return ids.masked_fill(best == NEG_INF, NO_TOKEN).masked_fill(~(best < float("inf")), NAN_TOKEN)


def check_token_ids(ids: Sequence[int]) -> None:
    """Refuse ids that `greedy_tokens` chose from logits that are not numbers."""
    if NAN_TOKEN in ids:
        raise DamageError(NAN_LOGITS_MESSAGE)


def check_logits(logits: Logits) -> None:
    """Refuse logits that are not numbers."""
    if not (logits.amax(-1) < float("inf")).all():  # every comparison with NaN is false
        raise DamageError(NAN_LOGITS_MESSAGE)
