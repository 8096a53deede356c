"""Outputs of generation: new ids, why rows ended, and log-probabilities (logprobs) of tokens.

Log-probabilities are the model's own: temperature, filters, penalties and constraints do not change them.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.runtime import FinishReason
from heddle.decoding.sampling import Logits

Alternatives = tuple[tuple[int, float], ...]  # (id, log-probability), most probable first
StopCriterion = Callable[[int, int], bool]  # (row, new id) -> whether the row ends here, stop ids aside


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a chosen token in nats, and those of the most probable tokens in its place."""

    logprob: float
    alternatives: Alternatives = ()


class StepOutput(NamedTuple):
    """What one row did in a step: its new id (None: it ended without one), and why it ended if it did."""

    row: int
    id: int | None
    reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


StepOutputs = Generator[StepOutput, None, None]
BatchOutputs = Generator[list[StepOutput], None, None]  # the outputs of all rows that a step advanced


@dataclass(frozen=True)
class Completion:
    """What one row generated: its new ids, a stop id included, why it ended, and log-probabilities if requested."""

    ids: list[int]
    reason: FinishReason
    token_logprobs: list[TokenLogprobs] = field(default_factory=list)
    logprob: float | None = field(default=None, compare=False)  # of all new ids, where a search computed it
    score: float | None = field(default=None, compare=False)  # by which a search ranked it

    @classmethod
    def from_steps(cls, steps: Sequence[StepOutput]) -> "Completion":
        """Join all steps of one row."""
        reason = steps[-1].reason
        if reason is None:
            raise UsageError("completion: want all steps of a row, got a row that has not ended")
        logprobs = [step.logprobs for step in steps if step.id is not None and step.logprobs is not None]
        return cls([step.id for step in steps if step.id is not None], reason, logprobs)

    @property
    def logprobs(self) -> list[float]:
        """Return the log-probability of each id in nats."""
        return [each.logprob for each in self.token_logprobs]

    @property
    def alternatives(self) -> list[Alternatives]:
        """Return the most probable ids in the place of each, with their log-probabilities."""
        return [each.alternatives for each in self.token_logprobs]


def chosen_logprobs(logits: Logits, chosen: Tensor, count: int | None) -> list[TokenLogprobs | None]:
    """Return the log-probability of each row's chosen id, with `count` alternatives; None: no log-probabilities."""
    if count is None:
        return [None] * len(logits)
    logprobs = logits.double().log_softmax(-1)
    taken = logprobs.gather(-1, chosen.clamp(min=0)[:, None])[:, 0]  # a row without a token ignores its value
    best, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    tops = zip(ids.tolist(), best.tolist(), strict=True)
    return [TokenLogprobs(one, tuple(zip(*top, strict=True))) for one, top in zip(taken.tolist(), tops, strict=True)]


def all_samples(found: Sequence[Sequence[Completion]], samples: int) -> list[Completion]:
    """Return the completions of all requests side by side; refuse fewer than `samples` for any of them."""
    for each in found:
        if len(each) < samples:
            raise UsageError(f"samples: want at most {len(each)}, all the sequences that there are, got {samples}")
    return [completion for each in found for completion in each]
