"""Opening: what is read before the first new token (prompts, and the sources of an encoder-decoder), and its state."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.constraints import Constraint
from heddle.decoding.runtime.limits import check_prompt, check_source, device_of, pad_rows
from heddle.decoding.runtime.prefix_cache import PrefixCache, shared
from heddle.decoding.sampling import GenerationConfig
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import KVCacheConfig, State

Prompt = Sequence[int]
Vectors = Float[Tensor, "batch width"]

SPARE = 128  # room for new tokens at first; it doubles when it is full, so that a long wish costs nothing by itself
SLACK = 10  # new tokens that any source may have, however short, before `How.stretch` counts


class FinishReason(StrEnum):
    """Why a row ended."""

    STOP = "stop"  # it gave one of the ids to stop at
    LENGTH = "length"  # it has as many tokens as were asked for
    CONTEXT = "context"  # the model has no positions left
    TIME = "time"  # the seconds that were given are over
    STUCK = "stuck"  # nothing may follow: what it must obey, or what is banned, leaves no token


@dataclass(frozen=True)
class Request:
    """What one row is asked for: to go on from ids, given a source where the model reads one, obeying a guide."""

    ids: Prompt = ()  # of an encoder-decoder: how the target begins
    source: Prompt | None = None
    constraint: Constraint | None = None


def make_requests(prompts: Sequence[Prompt], sources: Sequence[Prompt] | None = None) -> list[Request]:
    """Return prompts, with a source for each where there are any, as requests without a guide."""
    if sources is None:
        return [Request(prompt) for prompt in prompts]
    if len(sources) != len(prompts):
        raise UsageError(f"source: want {len(prompts)}, one for each row, got {len(sources)}")
    return [Request(prompt, source) for prompt, source in zip(prompts, sources, strict=True)]


@dataclass(frozen=True)
class Prefill:
    """Prompts that a model can read, with a source for each where it is an encoder-decoder, and how it reads them."""

    prompts: tuple[Prompt, ...]  # of an encoder-decoder: how the target begins
    sources: tuple[Prompt, ...] | None
    ends: tuple[int, ...]  # the length, prompt included, at which each row must stop
    cuts: tuple[FinishReason, ...]  # why it must stop there
    chunk: int  # tokens of each row read at once
    cache: KVCacheConfig
    prefix_cache: PrefixCache | None  # what was read before, and what is read now

    @property
    def most(self) -> int:
        """Return the room that the longest row may come to need; the last token is never read."""
        return max(self.ends) - 1

    def read(self, model: AutoregressiveModel) -> tuple[Float[Tensor, "batch vocab"], State]:
        """Read all prompts side by side, a chunk at a time; return the scores of each next token, and the state."""
        if self.prefix_cache is None:
            vectors, state = self._read_on(model, range(len(self.prompts)), None)
        else:
            vectors, state = self._read_known(model, self.prefix_cache)
        return model.head.logits(vectors), state

    def first_state(self, model: AutoregressiveModel, room: int) -> State:
        """Return the state before anything of the prompts was read, after the sources were."""
        return self._begin(model, range(len(self.prompts)), room)

    def _begin(self, model: AutoregressiveModel, rows: Sequence[int], room: int) -> State:
        memory = None
        if self.sources is not None:
            memory = model.encode(*pad_rows([self.sources[row] for row in rows], device_of(model)))
        state = model.new_state(len(rows), room, memory)
        return dataclasses.replace(state, cache=self.cache)

    def _read_on(self, model: AutoregressiveModel, rows: Sequence[int], state: State | None) -> tuple[Vectors, State]:
        """Read what is left of some prompts after a state; return each row's last vector, and the new state."""
        seen = [0] * len(rows) if state is None else state.lengths.tolist()
        left = [self.prompts[row][length:] for row, length in zip(rows, seen, strict=True)]
        ids, lengths = pad_rows(left, device_of(model))
        room = min(self.most, max(len(self.prompts[row]) for row in rows) + SPARE)
        last: Tensor | None = None
        for start in range(0, ids.shape[1], self.chunk):
            piece = ids[:, start : start + self.chunk]
            reached = max(min(n + len(rest), n + start + self.chunk) for n, rest in zip(seen, left, strict=True))
            if state is None:
                state = self._begin(model, rows, room if reached + self.chunk > room else reached)
            state = with_capacity(model, state, reached, room)
            new = None if lengths is None else (lengths - start).clamp(0, piece.shape[1])
            vectors, state = model.step(piece, state, new=new)
            last = _last(vectors, None if lengths is None else lengths - 1 - start, last)
        assert last is not None
        assert state is not None
        return last, state

    def _read_known(self, model: AutoregressiveModel, prefix_cache: PrefixCache) -> tuple[Vectors, State]:
        """Read all prompts, each from the longest beginning of it that is known; what several share is read first."""
        rows = self.rows()
        common = [one for one in shared(rows) if not prefix_cache.knows(*one, self.cache)]
        if common:
            sources = None if self.sources is None else tuple(source for _, source in common if source is not None)
            begun = dataclasses.replace(self, prompts=tuple(ids for ids, _ in common), sources=sources)
            begun._go_on(model, prefix_cache)
        return self._go_on(model, prefix_cache)

    def _go_on(self, model: AutoregressiveModel, prefix_cache: PrefixCache) -> tuple[Vectors, State]:
        """Read each prompt from the longest beginning of it that is known, and remember all of it."""
        rows = self.rows()
        found = [prefix_cache.find(ids[:-1], source, self.cache) for ids, source in rows]
        prefix_cache.reused += sum(one.length for one in found if one is not None)
        fresh = [row for row, one in enumerate(found) if one is None]
        known = [row for row, one in enumerate(found) if one is not None]
        parts = [self._read_on(model, fresh, None)] if fresh else []
        if known:
            parts.append(self._read_on(model, known, State.join([one.state for one in found if one is not None])))
        vectors, state = torch.cat([part[0] for part in parts]), State.join([part[1] for part in parts])
        order = torch.tensor([*fresh, *known]).argsort()
        vectors, state = vectors[order.to(vectors.device)], state.select(order.tolist())
        for row, (ids, source) in enumerate(rows):
            prefix_cache.keep(ids, state, source, row=row)
        return vectors, state

    def rows(self) -> list[tuple[Prompt, Prompt | None]]:
        """Return each prompt with its source."""
        sources: Sequence[Prompt | None] = (None,) * len(self.prompts) if self.sources is None else self.sources
        return list(zip(self.prompts, sources, strict=True))


def _last(vectors: Tensor, index: Int[Tensor, " batch"] | None, before: Tensor | None) -> Vectors:
    """Return each row's vector at an index; where it lies outside of these, what was found before."""
    if index is None:
        return vectors[:, -1]
    inside = index.clamp(0, vectors.shape[1] - 1)
    found = vectors[torch.arange(len(index), device=index.device), inside]
    return found if before is None else found.where((index == inside)[:, None], before)


def prepare_prefill(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    prefix_cache: PrefixCache | None = None,
) -> Prefill:
    """Check prompts and sources, and say how far each row may go."""
    if prefix_cache is not None and prefix_cache.model is not model:
        raise UsageError("prefixes: want those of the model itself, got those of another")
    filled = tuple(check_prompt(model, request.ids, config.begin) for request in requests)
    read = _sources(model, requests, config)
    wanted = [len(prompt) + config.max_tokens for prompt in filled]
    if config.stretch is not None and read is not None:
        limits = [len(p) + SLACK + math.ceil(config.stretch * len(s)) for p, s in zip(filled, read, strict=True)]
        wanted = [min(pair) for pair in zip(wanted, limits, strict=True)]
    last = None if model.max_length is None else model.max_length + 1
    ends = tuple(end if last is None else min(end, last) for end in wanted)
    cuts = tuple(
        FinishReason.LENGTH if end == wish else FinishReason.CONTEXT for end, wish in zip(ends, wanted, strict=True)
    )
    return Prefill(filled, read, ends, cuts, config.chunk, config.cache, prefix_cache)


def _sources(
    model: AutoregressiveModel, requests: Sequence[Request], config: GenerationConfig
) -> tuple[Prompt, ...] | None:
    given = [request.source for request in requests if request.source is not None]
    if not model.reads_source:
        if given:
            raise UsageError("source: want none, for a language model has no encoder to read it")
        return None
    if len(given) < len(requests):
        raise UsageError("source: want one for each row, for an encoder-decoder writes what its source says")
    return tuple(check_source(model, source, config.begin) for source in given)


def with_capacity(model: AutoregressiveModel, state: State, length: int, most: int) -> State:
    """Return a state in which rows may reach a length; what is added doubles, up to the most that is wanted."""
    if length <= state.capacity:
        return state
    room = max(length, min(most, 2 * state.capacity))
    model.decoder_tower.position.reserve(room)
    return state.resize(room)
