"""Penalties: scores -> scores, changed by what the caller likes or bans, and by what a row already holds.

They apply in this order. A bias is added whatever was said; one of -inf bans. Repetition (Keskar et al. 2019) looks at
prompt and new tokens: a score above 0 is divided, one below is multiplied. Presence and frequency look at the new
tokens alone, as servers do: what occurred costs so much once, and so much for each time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import Config, ConfigError, UsageError, settings
from heddle.decoding.sampling.filters import Logits


@settings
class PenaltyConfig(Config):
    """What is taken from the scores of tokens that were said before, and added to those that are liked."""

    repetition: float = 1.0  # 1: none; above: tokens of the row so far become less probable
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.repetition < math.inf:
            raise ConfigError("repetition", want="above 0, such as 1.2", got=self.repetition)
        for name in ("presence", "frequency"):
            if not abs(self.__dict__[name]) < math.inf:
                raise ConfigError(name, want="a number, such as 0.5", got=self.__dict__[name])
        for id, value in self.bias:
            if not isinstance(id, int):
                raise ConfigError("bias", want="ids and a number for each", got=id)
            if not value < math.inf:
                raise ConfigError("bias", want=f"a number for id {id}, or -inf to ban it", got=value)
        if len({id for id, _ in self.bias}) < len(self.bias):
            raise ConfigError("bias", want="one number for each id", got=self.bias)

    @property
    def remember(self) -> bool:
        """Tell whether anything depends on what was said before."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0


@dataclass(frozen=True)
class History:
    """What rows hold so far, of which all have as many new tokens."""

    prompts: Int[Tensor, "rows longest"]  # a shorter one is filled up with its last id, which changes nothing
    new: Int[Tensor, "rows new"]

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], device: torch.device) -> "History":
        """Begin with prompts, of one id or more each."""
        longest = max(map(len, prompts))
        rows = [[*prompt, *[prompt[-1]] * (longest - len(prompt))] for prompt in prompts]
        ids = torch.tensor(rows, device=device)
        return cls(ids, ids[:, :0])

    def push(self, ids: Int[Tensor, " rows"]) -> "History":
        """Return the history with one more id in each row."""
        return History(self.prompts, torch.cat((self.new, ids[:, None]), 1))

    def select(self, rows: Int[Tensor, " chosen"]) -> "History":
        """Return the history of the chosen rows, in that order."""
        return History(self.prompts.index_select(0, rows), self.new.index_select(0, rows))


def penalise(scores: Logits, penalties: PenaltyConfig, history: History | None) -> Logits:
    """Return scores as the penalties leave them; without a history, only the bias counts."""
    if not penalties.bias and (history is None or not penalties.remember):
        return scores
    if scores.dtype in (torch.bfloat16, torch.float16):  # whose steps are wider than many a penalty
        scores = scores.float()
    scores = _bias(scores, penalties)
    if history is None or not penalties.remember:
        return scores
    if penalties.repetition != 1:
        said = torch.cat((history.prompts, history.new), 1)
        found = scores.gather(1, said)
        by = penalties.repetition
        scores = scores.scatter(1, said, torch.where(found < 0, found * by, found / by))
    if penalties.presence or penalties.frequency:
        counts = torch.zeros_like(scores).scatter_add_(1, history.new, torch.ones_like(history.new, dtype=scores.dtype))
        scores = scores - penalties.presence * (counts > 0) - penalties.frequency * counts
    return scores


def _bias(scores: Logits, penalties: PenaltyConfig) -> Logits:
    if not penalties.bias:
        return scores
    ids, added = zip(*penalties.bias, strict=True)
    if not 0 <= min(ids) <= max(ids) < scores.shape[-1]:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise UsageError(f"bias: want ids from 0 to {scores.shape[-1] - 1}, got {wrong}")
    values = torch.tensor(added, dtype=scores.dtype, device=scores.device)
    return scores.index_add(-1, torch.tensor(ids, device=scores.device), values.expand(*scores.shape[:-1], -1))
