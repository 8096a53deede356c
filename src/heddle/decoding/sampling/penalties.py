"""Repetition, presence and frequency penalties, no repeated n-grams, and logit bias: logits -> logits.

They apply in this order. A bias is added to the logits of given tokens; -inf bans a token. The repetition penalty
(CTRL, Keskar et al. 2019) looks at the prompt and the new tokens: a logit above 0 is divided by it, one below 0 is
multiplied. Presence and frequency penalties, as in common serving APIs, look at the new tokens alone: one is subtracted
once from each token that occurred, the other once for each occurrence. Last, tokens that would complete an n-gram of
prompt and new tokens a second time are banned (n-gram blocking, Paulus et al. 2018).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from heddle.core import Config, ConfigError, UsageError, check_at_least, settings
from heddle.decoding.sampling.filters import NEG_INF, Logits


@settings
class PenaltyConfig(Config):
    """Repetition penalty, presence and frequency penalties, a bias by token, and no repeated n-grams."""

    repetition: float = 1.0  # 1: none; above 1: tokens of the row so far become less probable
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    no_repeat_ngram: int = 0  # n-grams of so many tokens occur once in a row; 0: any may come again

    def __post_init__(self) -> None:
        if not 1e-3 <= self.repetition <= 1e3:  # beyond, float32 logits overflow
            raise ConfigError("repetition", want="from 0.001 to 1000, such as 1.2", got=self.repetition)
        check_at_least(0, no_repeat_ngram=self.no_repeat_ngram)
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
    def needs_history(self) -> bool:
        """Tell whether a penalty depends on the tokens of the row so far."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0 or self.no_repeat_ngram > 0


@dataclass(frozen=True)
class History:
    """The tokens of rows so far; all rows have the same number of new tokens."""

    prompts: Int[Tensor, "rows longest"]  # a shorter prompt repeats its last id, which changes nothing
    new: Int[Tensor, "rows new"]
    lengths: Int[Tensor, " rows"] | None = None  # of the prompts; None: all are as long as the longest

    @classmethod
    def from_prompts(cls, prompts: Sequence[Sequence[int]], device: torch.device) -> "History":
        """Start from prompts of one id or more each."""
        longest = max(map(len, prompts))
        rows = [[*prompt, *[prompt[-1]] * (longest - len(prompt))] for prompt in prompts]
        ids = torch.tensor(rows, device=device)
        return cls(ids, ids[:, :0], torch.tensor([len(prompt) for prompt in prompts], device=device))

    def append(self, ids: Int[Tensor, " rows"]) -> "History":
        """Return the history with one more id in each row."""
        return History(self.prompts, torch.cat((self.new, ids[:, None]), 1), self.lengths)

    def select(self, rows: Int[Tensor, " chosen"]) -> "History":
        """Return the history of the chosen rows, in that order."""
        lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        return History(self.prompts.index_select(0, rows), self.new.index_select(0, rows), lengths)

    def rows(self) -> tuple[Int[Tensor, "rows all"], Int[Tensor, " rows"]]:
        """Return prompts and new tokens end to end, and how many of each row are real."""
        longest, new = self.prompts.shape[1], self.new.shape[1]
        lengths = self.prompts.new_full((len(self.prompts),), longest) if self.lengths is None else self.lengths
        places = torch.arange(longest + new, device=lengths.device).expand(len(lengths), -1)
        shifted = places + (longest - lengths[:, None]) * (places >= lengths[:, None])
        both = torch.cat((self.prompts, self.new), 1)
        return both.gather(1, shifted.clamp(max=longest + new - 1)), lengths + new


def apply_penalties(logits: Logits, penalties: PenaltyConfig, history: History | None) -> Logits:
    """Apply the bias, and with a history the repetition, presence and frequency penalties."""
    if not penalties.bias and (history is None or not penalties.needs_history):
        return logits
    if logits.dtype in (torch.bfloat16, torch.float16):  # too coarse for small penalties
        logits = logits.float()
    logits = _add_bias(logits, penalties)
    if history is None or not penalties.needs_history:
        return logits
    if penalties.repetition != 1:
        seen = torch.cat((history.prompts, history.new), 1)
        found = logits.gather(1, seen)
        by = penalties.repetition
        logits = logits.scatter(1, seen, torch.where(found < 0, found * by, found / by))
    if penalties.presence or penalties.frequency:
        counts = torch.zeros_like(logits).scatter_add_(1, history.new, torch.ones_like(history.new, dtype=logits.dtype))
        logits = logits - penalties.presence * (counts > 0) - penalties.frequency * counts
    if penalties.no_repeat_ngram:
        logits = logits.masked_fill(repeated_ngrams(history, penalties.no_repeat_ngram, logits.shape[1]), NEG_INF)
    return logits


def repeated_ngrams(history: History, size: int, vocab: int) -> Bool[Tensor, "rows vocab"]:
    """Tell which tokens would complete an n-gram that a row has already."""
    ids, lengths = history.rows()
    banned = torch.zeros(len(ids), vocab, dtype=torch.bool, device=ids.device)
    if ids.shape[1] < size:
        return banned
    every = ids.unfold(1, size, 1)  # each n-gram, of which those beyond the row's length are none
    ends = torch.arange(size, ids.shape[1] + 1, device=ids.device)
    last = lengths[:, None] - size + 1 + torch.arange(size - 1, device=ids.device)
    begun = ids.gather(1, last.clamp(min=0))
    again = (every[..., :-1] == begun[:, None]).all(-1) & (ends <= lengths[:, None])
    rows, places = again.nonzero(as_tuple=True)
    banned[rows, every[rows, places, -1]] = True
    return banned


def _add_bias(logits: Logits, penalties: PenaltyConfig) -> Logits:
    if not penalties.bias:
        return logits
    ids, added = zip(*penalties.bias, strict=True)
    if not 0 <= min(ids) <= max(ids) < logits.shape[-1]:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise UsageError(f"bias: want ids from 0 to {logits.shape[-1] - 1}, got {wrong}")
    values = torch.tensor(added, dtype=logits.dtype, device=logits.device)
    return logits.index_add(-1, torch.tensor(ids, device=logits.device), values.expand(*logits.shape[:-1], -1))
