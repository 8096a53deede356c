"""Scoring of several continuations of one prefix, which is read once: the log-probability of each.

What all prefixes begin with, such as the examples of few-shot prompts, can be read once for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.runtime import check_prompt, check_source, device_of, eval_mode, pad_rows, pad_sources
from heddle.decoding.sampling import check_logits
from heddle.models.networks import AutoregressiveModel, LanguageModel
from heddle.nn.state import State

BATCH = 1 << 11  # tokens read at once
HELD = 1 << 30  # bytes of copies of a shared state that exist at once
ON_GPU = 8  # times as many of both, where there is more memory and more to keep busy


@dataclass(frozen=True)
class SharedPrefix:
    """A prefix and its continuations, neither of them empty, and the source of an encoder-decoder."""

    prefix: Sequence[int]
    continuations: Sequence[Sequence[int]]
    source: Sequence[int] | None = None

    @property
    def tokens(self) -> int:
        """Count the tokens that are read."""
        return len(self.source or ()) + len(self.prefix) + sum(map(len, self.continuations))


@dataclass(frozen=True)
class TokenQueries:
    """A row, and (place, tokens) to score: the log-probability of each token after `row[:place]`."""

    row: Sequence[int]
    queries: Sequence[tuple[int, Sequence[int]]]


def score_continuations(
    model: AutoregressiveModel, texts: Sequence[SharedPrefix], shared: Sequence[int] = ()
) -> list[list[float]]:
    """Return the log-probability in nats of each continuation after its prefix.

    All prefixes begin with `shared`, and are longer; it is read once for all of them.
    """
    _check_sight(model, [text.source for text in texts])
    found: list[list[float]] = [[] for _ in texts]
    order = sorted(range(len(texts)), key=lambda i: (len(texts[i].prefix), max(map(len, texts[i].continuations))))
    with torch.inference_mode(), eval_mode(model):
        begun = _read_shared(model, texts, shared) if len(shared) else None
        times = ON_GPU if device_of(model).type == "cuda" else 1
        while order:
            batch = _next_batch(order, [_cost(texts[i], begun, len(shared)) for i in order], times)
            order = order[: -len(batch)]
            for i, logprobs in zip(batch, _score(model, [texts[i] for i in batch], begun), strict=True):
                found[i] = logprobs
    return found


def _read_shared(model: AutoregressiveModel, texts: Sequence[SharedPrefix], shared: Sequence[int]) -> State:
    """Return the state after what all prefixes begin with."""
    begun = list(shared)
    if any(text.source is not None or list(text.prefix[: len(begun)]) != begun for text in texts):
        raise UsageError("shared: want what all prefixes begin with, and no sources")
    if any(len(text.prefix) == len(begun) for text in texts):
        raise UsageError("shared: want prefixes that are longer than it")
    ids, _ = pad_rows([check_prompt(model, begun)], device_of(model))
    return model.step(ids, model.new_state(1, len(begun)))[1]


def _cost(text: SharedPrefix, begun: State | None, shared: int) -> int:
    """Return the tokens to read, and as many more as copies of the shared state take of the memory for a batch."""
    copies = len(text.continuations) if max(map(len, text.continuations)) > 1 else 1
    return text.tokens - shared + (0 if begun is None else copies * begun.nbytes() * BATCH // HELD)


def score_tokens(model: LanguageModel, queries: Sequence[TokenQueries]) -> list[list[list[float]]]:
    """Return the log-probability in nats of each token at each place of each row."""
    _check_sight(model, [])
    found: list[list[list[float]]] = [[] for _ in queries]
    order = sorted((i for i, q in enumerate(queries) if q.queries), key=lambda i: len(queries[i].row))
    with torch.inference_mode(), eval_mode(model):
        while order:
            batch = _next_batch(order, [len(queries[i].row) for i in order])
            order = order[: -len(batch)]
            for i, logprobs in zip(batch, _score_tokens(model, [queries[i] for i in batch]), strict=True):
                found[i] = logprobs
    return found


def _check_sight(model: AutoregressiveModel, sources: Sequence[Sequence[int] | None]) -> None:
    if model.sight != "past" or any((source is not None) != model.reads_source for source in sources):
        raise UsageError("want a language model that sees the past only, or an encoder-decoder with sources")
    if not sources and model.reads_source:
        raise UsageError("want a language model that sees the past only")


def _next_batch(order: list[int], sizes: list[int], times: int = 1) -> list[int]:
    """Return the last of an order, as many as fit into a batch, or `times` as large a one, one at least."""
    left, count = times * BATCH, 0
    while count < len(order) and (count == 0 or left >= sizes[-1 - count]):
        left -= sizes[-1 - count]
        count += 1
    return order[-count:]


def _score(model: AutoregressiveModel, texts: list[SharedPrefix], begun: State | None) -> list[list[float]]:
    device = device_of(model)
    read = 0 if begun is None else int(begun.lengths[0])
    prefixes, lengths = pad_rows([check_prompt(model, text.prefix)[read:] for text in texts], device)
    ends, ended = pad_rows([check_prompt(model, end) for text in texts for end in text.continuations], device)
    owners = torch.tensor([i for i, text in enumerate(texts) for _ in text.continuations], device=device)
    state = _state_before(model, texts, begun, read + prefixes.shape[1] + ends.shape[1])
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


def _state_before(model: AutoregressiveModel, texts: list[SharedPrefix], begun: State | None, capacity: int) -> State:
    """Return the state of each row before the rest of its prefix."""
    if begun is not None:
        model.reserve(capacity)
        return begun.select(torch.zeros(len(texts), dtype=torch.long, device=begun.lengths.device)).resize(capacity)
    sources = [check_source(model, text.source) for text in texts if text.source is not None]
    memory = model.encode(*pad_sources(sources, device_of(model))) if sources else None
    return model.new_state(len(texts), capacity, memory)


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
