"""Forking: how probable are several endings of one beginning, which is read once and shared by all of them.

For whoever weighs variants of a text: what they have in common costs nothing more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.runtime import check_prompt, device_of, eval_mode, pad_rows
from heddle.decoding.sampling import check_logits
from heddle.models.networks import LanguageModel

BATCH = 1 << 11  # tokens read at once


@dataclass(frozen=True)
class SharedPrefix:
    """A beginning and the ends that it may have; neither is empty."""

    start: Sequence[int]
    ends: Sequence[Sequence[int]]


@dataclass(frozen=True)
class TokenQueries:
    """A row, and at some of its places the tokens that are asked after: how probable is each after `row[:place]`?"""

    row: Sequence[int]
    asked: Sequence[tuple[int, Sequence[int]]]


def score_continuations(model: LanguageModel, forks: Sequence[SharedPrefix]) -> list[list[float]]:
    """Return the log-probability in nats of each end of each fork, after its start."""
    _check_sight(model)
    found: list[list[float]] = [[] for _ in forks]
    order = sorted(range(len(forks)), key=lambda i: (len(forks[i].start), max(map(len, forks[i].ends))))
    with torch.inference_mode(), eval_mode(model):
        while order:
            batch = _last(order, [len(forks[i].start) + sum(map(len, forks[i].ends)) for i in order])
            order = order[: -len(batch)]
            for i, odds in zip(batch, _read(model, [forks[i] for i in batch]), strict=True):
                found[i] = odds
    return found


def score_tokens(model: LanguageModel, glances: Sequence[TokenQueries]) -> list[list[list[float]]]:
    """Return, for each glance, the log-probability in nats of each token asked after at each of its places."""
    _check_sight(model)
    found: list[list[list[float]]] = [[] for _ in glances]
    order = sorted((i for i, g in enumerate(glances) if g.asked), key=lambda i: len(glances[i].row))
    with torch.inference_mode(), eval_mode(model):
        while order:
            batch = _last(order, [len(glances[i].row) for i in order])
            order = order[: -len(batch)]
            for i, odds in zip(batch, _look(model, [glances[i] for i in batch]), strict=True):
                found[i] = odds
    return found


def _check_sight(model: LanguageModel) -> None:
    if model.reads_source or model.sight != "past":
        raise UsageError("want a language model that sees the past alone")


def _last(order: list[int], sizes: list[int]) -> list[int]:
    """Return the last few of an order, as many as fit into a batch, one at least."""
    room, count = BATCH, 0
    while count < len(order) and (count == 0 or room >= sizes[-1 - count]):
        room -= sizes[-1 - count]
        count += 1
    return order[-count:]


def _read(model: LanguageModel, forks: list[SharedPrefix]) -> list[list[float]]:
    device = device_of(model)
    starts, lengths = pad_rows([check_prompt(model, fork.start) for fork in forks], device)
    ends, ended = pad_rows([check_prompt(model, end) for fork in forks for end in fork.ends], device)
    owners = torch.tensor([i for i, fork in enumerate(forks) for _ in fork.ends], device=device)
    state = model.new_state(len(forks), starts.shape[1] + ends.shape[1])
    vectors, state = model.step(starts, state, new=lengths)
    at = starts.shape[1] - 1 if lengths is None else lengths - 1
    first = vectors[torch.arange(len(forks), device=device), at][owners][:, None]
    if ends.shape[1] > 1:
        new = None if ended is None else ended - 1
        rest, _ = model.step(ends[:, :-1], state.select(owners), new=new)
        first = torch.cat([first, rest], dim=1)
    real = torch.ones_like(ends, dtype=torch.bool)
    if ended is not None:
        real = torch.arange(ends.shape[1], device=device) < ended[:, None]
    odds = torch.zeros(ends.shape, device=device)
    odds[real] = -model.head.nll(first[real], ends[real]).float()
    check_logits(odds)
    sums: list[float] = odds.sum(1, dtype=torch.float64).tolist()
    return [[sums.pop(0) for _ in fork.ends] for fork in forks]


def _look(model: LanguageModel, glances: list[TokenQueries]) -> list[list[list[float]]]:
    device = device_of(model)
    rows, _ = pad_rows([check_prompt(model, glance.row) for glance in glances], device)
    vectors = model(rows)  # padding comes after all that is asked for, where the past cannot see it
    asked = [(i, place - 1, tokens) for i, glance in enumerate(glances) for place, tokens in glance.asked]
    lines = {place: line for line, place in enumerate(dict.fromkeys((i, step) for i, step, _ in asked))}
    owners, steps = (torch.tensor(part, device=device) for part in zip(*lines, strict=True))
    odds: Tensor = model.head.logits(vectors[owners, steps]).float().log_softmax(-1)
    check_logits(odds)
    chosen = [(lines[i, step], token) for i, step, tokens in asked for token in tokens]
    flat = iter(odds[tuple(torch.tensor(part, device=device) for part in zip(*chosen, strict=True))].tolist())
    return [[[next(flat) for _ in tokens] for _, tokens in glance.asked] for glance in glances]
