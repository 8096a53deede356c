"""Scoring of several continuations of one prefix, which is read once: the log-probability of each."""

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
    """A prefix and its continuations; neither is empty."""

    prefix: Sequence[int]
    continuations: Sequence[Sequence[int]]


@dataclass(frozen=True)
class TokenQueries:
    """A row, and (place, tokens) to score: the log-probability of each token after `row[:place]`."""

    row: Sequence[int]
    queries: Sequence[tuple[int, Sequence[int]]]


def score_continuations(model: LanguageModel, texts: Sequence[SharedPrefix]) -> list[list[float]]:
    """Return the log-probability in nats of each continuation after its prefix."""
    _check_sight(model)
    found: list[list[float]] = [[] for _ in texts]
    order = sorted(range(len(texts)), key=lambda i: (len(texts[i].prefix), max(map(len, texts[i].continuations))))
    with torch.inference_mode(), eval_mode(model):
        while order:
            batch = _next_batch(order, [len(texts[i].prefix) + sum(map(len, texts[i].continuations)) for i in order])
            order = order[: -len(batch)]
            for i, logprobs in zip(batch, _score(model, [texts[i] for i in batch]), strict=True):
                found[i] = logprobs
    return found


def score_tokens(model: LanguageModel, queries: Sequence[TokenQueries]) -> list[list[list[float]]]:
    """Return the log-probability in nats of each token at each place of each row."""
    _check_sight(model)
    found: list[list[list[float]]] = [[] for _ in queries]
    order = sorted((i for i, q in enumerate(queries) if q.queries), key=lambda i: len(queries[i].row))
    with torch.inference_mode(), eval_mode(model):
        while order:
            batch = _next_batch(order, [len(queries[i].row) for i in order])
            order = order[: -len(batch)]
            for i, logprobs in zip(batch, _score_tokens(model, [queries[i] for i in batch]), strict=True):
                found[i] = logprobs
    return found


def _check_sight(model: LanguageModel) -> None:
    if model.reads_source or model.sight != "past":
        raise UsageError("want a language model that sees the past only")


def _next_batch(order: list[int], sizes: list[int]) -> list[int]:
    """Return the last of an order, as many as fit into a batch, one at least."""
    left, count = BATCH, 0
    while count < len(order) and (count == 0 or left >= sizes[-1 - count]):
        left -= sizes[-1 - count]
        count += 1
    return order[-count:]


def _score(model: LanguageModel, texts: list[SharedPrefix]) -> list[list[float]]:
    device = device_of(model)
    prefixes, lengths = pad_rows([check_prompt(model, text.prefix) for text in texts], device)
    ends, ended = pad_rows([check_prompt(model, end) for text in texts for end in text.continuations], device)
    owners = torch.tensor([i for i, text in enumerate(texts) for _ in text.continuations], device=device)
    state = model.new_state(len(texts), prefixes.shape[1] + ends.shape[1])
    vectors, state = model.step(prefixes, state, lengths=lengths)
    at = prefixes.shape[1] - 1 if lengths is None else lengths - 1
    first = vectors[torch.arange(len(texts), device=device), at][owners][:, None]
    if ends.shape[1] > 1:
        new = None if ended is None else ended - 1
        rest, _ = model.step(ends[:, :-1], state.select(owners), lengths=new)
        first = torch.cat([first, rest], dim=1)
    real = torch.ones_like(ends, dtype=torch.bool)
    if ended is not None:
        real = torch.arange(ends.shape[1], device=device) < ended[:, None]
    logprobs = torch.zeros(ends.shape, device=device)
    logprobs[real] = -model.head.nll(first[real], ends[real]).float()
    check_logits(logprobs)
    sums: list[float] = logprobs.sum(1, dtype=torch.float64).tolist()
    return [[sums.pop(0) for _ in text.continuations] for text in texts]


def _score_tokens(model: LanguageModel, queries: list[TokenQueries]) -> list[list[list[float]]]:
    device = device_of(model)
    rows, _ = pad_rows([check_prompt(model, query.row) for query in queries], device)
    vectors = model(rows)  # padding is on the right, which no token sees
    wanted = [(i, place - 1, tokens) for i, query in enumerate(queries) for place, tokens in query.queries]
    index = {place: at for at, place in enumerate(dict.fromkeys((i, step) for i, step, _ in wanted))}
    owners, steps = (torch.tensor(part, device=device) for part in zip(*index, strict=True))
    logprobs: Tensor = model.head.logits(vectors[owners, steps]).float().log_softmax(-1)
    check_logits(logprobs)
    chosen = [(index[i, step], token) for i, step, tokens in wanted for token in tokens]
    flat = iter(logprobs[tuple(torch.tensor(part, device=device) for part in zip(*chosen, strict=True))].tolist())
    return [[[next(flat) for _ in tokens] for _, tokens in query.queries] for query in queries]
