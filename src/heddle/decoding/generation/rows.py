"""Active rows: rows that are still being generated, and the conditions that end them."""

from collections.abc import Sequence
from dataclasses import dataclass

from heddle.decoding.constraints import Constraint
from heddle.decoding.generation.generation_config import GenerationConfig
from heddle.decoding.generation.outputs import StopCriterion
from heddle.decoding.runtime import Deadline, FinishReason, Prefill, Request
from heddle.decoding.sampling import NO_TOKEN, RowPosition, hash_ids


@dataclass
class ActiveRow:
    """A row that is still being generated."""

    number: int
    position: RowPosition  # after the prompt and the new tokens
    end: int  # the length at which it must end
    end_reason: FinishReason  # why it must end there
    constraint: Constraint | None

    def append(
        self, id: int, stop: frozenset[int], should_stop: StopCriterion | None, late: bool
    ) -> tuple[int | None, FinishReason | None]:
        """Append an id; return it, None for `NO_TOKEN`, and why the row ends if it does."""
        if id == NO_TOKEN:
            finished = self.constraint is not None and self.constraint.finished
            return None, FinishReason.STOP if finished else FinishReason.STUCK
        self.position = self.position.append(id)
        stopped = should_stop is not None and should_stop(self.number, id)
        if stopped or id in stop:
            return id, FinishReason.STOP
        if self.constraint is not None:
            self.constraint = self.constraint.advance(id)
            if self.constraint.finished:
                return id, FinishReason.STOP
        return id, self.end_reason if self.position.length == self.end else FinishReason.TIME if late else None


@dataclass(frozen=True)
class StopConditions:
    """What ends rows besides their length: a deadline, stop ids, a stop criterion."""

    deadline: Deadline
    stop: frozenset[int]
    should_stop: StopCriterion | None

    @classmethod
    def start(cls, config: GenerationConfig, should_stop: StopCriterion | None) -> "StopConditions":
        """Return the conditions of a generation that starts now."""
        return cls(Deadline.after(config.seconds), frozenset(config.stop), should_stop)

    def append(self, rows: Sequence[ActiveRow], ids: Sequence[int]) -> list[tuple[int | None, FinishReason | None]]:
        """Append an id to each row; return the ids, and why rows end."""
        late = self.deadline.passed()
        return [row.append(id, self.stop, self.should_stop, late) for row, id in zip(rows, ids, strict=True)]


def active_rows(prefill: Prefill, requests: Sequence[Request], config: GenerationConfig) -> list[ActiveRow]:
    """Return the rows of all prompts, the samples of a prompt side by side."""
    drawn = config.strategy.draws  # else no hash is needed
    pasts = [hash_ids(prompt, source) if drawn else None for prompt, source in prefill.rows()]
    each = zip(prefill.prompts, prefill.ends, prefill.end_reasons, requests, pasts, strict=True)
    return [
        ActiveRow(number * config.samples + sample, RowPosition(sample, len(prompt), past), end, reason, r.constraint)
        for number, (prompt, end, reason, r, past) in enumerate(each)
        for sample in range(config.samples)
    ]
