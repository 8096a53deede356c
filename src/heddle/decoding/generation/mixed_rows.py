"""Rows with a generation config each, advanced together by one batch of logits: what continuous batching decodes.

Each row obeys its own strategy, seed, filters, penalties, bias, stop ids, minimum length, constraint and deadline.
Rows that share settings are computed together. Every operation is per row, so a row's ids and log-probabilities are
those that it would have alone, given the same logits.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from heddle.core import HeddleError, UsageError
from heddle.decoding.constraints import apply_constraints
from heddle.decoding.generation.generation_config import GenerationConfig, TokenChooser
from heddle.decoding.generation.logits import process_logits
from heddle.decoding.generation.outputs import StepOutput, StopCriterion, TokenLogprobs, chosen_logprobs
from heddle.decoding.generation.rows import ActiveRow, StopConditions, active_rows
from heddle.decoding.runtime import Prefill, Request
from heddle.decoding.sampling import History, Logits


@dataclass
class MixedRow:
    """A row with its own generation config: what it has generated, and when it ends."""

    row: ActiveRow
    config: GenerationConfig
    chooser: TokenChooser
    conditions: StopConditions
    history: History | None = None  # if a penalty needs it
    process_label: object = (
        None  # equal for rows whose logits can be processed together, penalties that look back aside
    )
    choose_label: object = None  # equal for rows whose tokens can be chosen together
    new: int = 0  # new tokens so far
    last: int = field(default=-1)  # the id chosen last, which the model reads next

    @property
    def length(self) -> int:
        """Return the number of its tokens, prompt included; the last one is not read yet."""
        return self.row.position.length


def mixed_row(
    prefill: Prefill,
    request: Request,
    config: GenerationConfig,
    sample: int = 0,
    should_stop: StopCriterion | None = None,
) -> MixedRow:
    """Return one sample of a request of a prefill with one prompt; refuse a strategy that needs more than logits."""
    chooser = config.strategy.chooser
    if chooser is None:
        raise UsageError(f"strategy: {config.strategy.kind} does not choose each token from its logits alone")
    row = active_rows(prefill, [request], config)[sample]
    history = (
        History.from_prompts([prefill.prompts[0]], torch.device("cpu")) if config.penalties.needs_history else None
    )
    labels = _label((config.penalties, config.vocab, config.stop)), _label(chooser.batch_key)
    return MixedRow(row, config, chooser, StopConditions.start(config, should_stop), history, *labels)


@lru_cache(maxsize=4096)
def _label(key: Hashable) -> object:
    """Return one object for equal keys, so that no step hashes them again."""
    return object()


def advance_rows(logits: Logits, rows: Sequence[MixedRow]) -> list[StepOutput | Exception]:
    """Choose a token for each row from its logits and append it; a row whose logits are damaged gets the error.

    An output has the number of the row's sample.
    """
    processed = _processed(logits, rows)
    ids, errors = _choose(processed, rows)
    logprobs = _logprobs(logits, ids, rows)
    chosen = ids.tolist()
    return [
        _append(row, id, logprob) if (error := errors[number]) is None else error
        for number, (row, id, logprob) in enumerate(zip(rows, chosen, logprobs, strict=True))
    ]


def _append(row: MixedRow, id: int, logprob: TokenLogprobs | None) -> StepOutput | Exception:
    try:
        ((appended, reason),) = row.conditions.append([row.row], [id])
    except Exception as error:  # of its constraint or stop criterion: nobody else's fault
        return error
    row.new, row.last = row.new + 1, id
    if row.history is not None:
        row.history = row.history.append(torch.tensor([max(id, 0)]))
    return StepOutput(row.row.number, appended, reason, logprob)


def _groups(rows: Sequence[MixedRow], key: Callable[[MixedRow], Hashable]) -> list[list[int]]:
    """Return the numbers of rows with equal keys, group by group."""
    found: dict[Hashable, list[int]] = {}
    for number, row in enumerate(rows):
        found.setdefault(key(row), []).append(number)
    return list(found.values())


def _process_key(row: MixedRow) -> Hashable:
    """Return what rows share whose logits can be processed together; penalties that look back are a row's own."""
    ends = row.config.forced_end and row.new == row.config.max_tokens - 1
    return row.process_label, row.new < row.config.min_tokens, ends, None if row.history is None else id(row)


def _processed(logits: Logits, rows: Sequence[MixedRow]) -> Logits:
    """Apply penalties, bias, minimum length and constraints, each row's own."""
    groups = _groups(rows, _process_key)
    if len(groups) == 1:
        found = _process_group(logits, rows)
    else:
        found = _scatter(logits, groups, [_process_group(logits[group], [rows[i] for i in group]) for group in groups])
    constraints = [row.row.constraint for row in rows]
    return apply_constraints(found, constraints) if any(one is not None for one in constraints) else found


def _process_group(logits: Logits, rows: Sequence[MixedRow]) -> Logits:
    first = rows[0]
    history = first.history
    if history is not None:
        history = History(history.prompts.to(logits.device), history.new.to(logits.device))
    return process_logits(logits, first.config, first.new, history)


def _scatter(like: Tensor, groups: Sequence[Sequence[int]], found: Sequence[Tensor]) -> Tensor:
    """Return the results of groups in the order of the rows, in the widest dtype that any has."""
    dtype = like.dtype
    for one in found:
        dtype = torch.promote_types(dtype, one.dtype)
    result = like.new_empty(like.shape, dtype=dtype)
    for group, one in zip(groups, found, strict=True):
        result[list(group)] = one.to(dtype)
    return result


def _choose(processed: Logits, rows: Sequence[MixedRow]) -> tuple[Tensor, list[HeddleError | None]]:
    """Choose an id for each row; rows with equal batch keys together."""
    ids = torch.zeros(len(rows), dtype=torch.long, device=processed.device)
    errors: list[HeddleError | None] = [None] * len(rows)
    groups = _groups(rows, lambda row: row.choose_label)
    for group in groups:
        try:
            chosen = _choose_group(processed if len(groups) == 1 else processed[group], [rows[i] for i in group])
            ids[group] = chosen
        except HeddleError:  # at least one is damaged: find out which
            for i in group:
                try:
                    ids[i] = _choose_group(processed[i : i + 1], [rows[i]])[0]
                except HeddleError as error:
                    errors[i] = error
    return ids, errors


def _choose_group(logits: Logits, rows: Sequence[MixedRow]) -> Tensor:
    choosers = [row.chooser for row in rows]
    return choosers[0].choose_batch(logits, [row.row.position for row in rows], choosers)


def _logprobs(logits: Logits, ids: Tensor, rows: Sequence[MixedRow]) -> list[TokenLogprobs | None]:
    """Return the model's own log-probabilities of the rows that want them."""
    found: list[TokenLogprobs | None] = [None] * len(rows)
    for group in _groups(rows, lambda row: row.config.logprobs):
        count = rows[group[0]].config.logprobs
        if count is not None:
            for number, one in zip(group, chosen_logprobs(logits[group], ids[group], count), strict=True):
                found[number] = one
    return found
