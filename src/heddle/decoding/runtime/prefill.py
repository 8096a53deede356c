"""Prefill: read all prompts (and the sources of an encoder-decoder) before the first new token, chunk by chunk."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from heddle.core import UsageError
from heddle.core.shapes import Stream
from heddle.decoding.runtime.limits import check_prompt, check_source, device_of, longest_row, pad_rows, pad_sources
from heddle.decoding.runtime.prefix_cache import PrefixCache, common_prefixes
from heddle.decoding.runtime.requests import FinishReason, Prompt, Request, Source
from heddle.decoding.runtime.streaming import Streaming, StreamingConfig
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import KVCacheConfig, State

Vectors = Float[Tensor, "batch width"]

SPARE = 128  # capacity for new tokens at first; it doubles when full: a large max_tokens costs nothing by itself
SLACK = 10  # new tokens that every row may have beyond `max_length_ratio` times its source


@dataclass(frozen=True)
class PrefillOptions:
    """The settings of a generation that prefill depends on."""

    max_tokens: int  # new tokens of each row
    max_length_ratio: float | None  # new tokens for each token of the source
    begin: int | None  # the id that an empty prompt starts from
    chunk: int  # tokens of each row read at once
    cache: KVCacheConfig
    streaming: StreamingConfig | None = None  # attention sinks and a window in place of the whole context


@dataclass(frozen=True)
class Prefill:
    """Prompts that a model can read, with the sources of an encoder-decoder, and how far each row may go."""

    prompts: tuple[Prompt, ...]  # with an encoder-decoder: the beginning of each target
    sources: tuple[Source, ...] | None
    ends: tuple[int, ...]  # the length, prompt included, at which each row must end
    end_reasons: tuple[FinishReason, ...]  # why it must end there
    chunk: int  # tokens of each row read at once
    cache: KVCacheConfig
    prefix_cache: PrefixCache | None  # reads from it and adds to it
    streaming: Streaming | None = None  # attention sinks and a window in place of the whole context

    @property
    def max_length(self) -> int:
        """Return the length of state that the longest row may need; its last token is never read."""
        return max(self.ends) - 1

    def run(self, model: AutoregressiveModel) -> tuple[Float[Tensor, "batch vocab"], State]:
        """Read all prompts side by side, chunk by chunk; return the logits of each next token, and the state."""
        if self.streaming is not None:
            vectors, state = self._stream(model, self.streaming)
        elif self.prefix_cache is None:
            vectors, state = self._continue(model, range(len(self.prompts)), None)
        else:
            vectors, state = self._run_cached(model, self.prefix_cache)
        return model.head.logits(vectors), state

    def _stream(self, model: AutoregressiveModel, streaming: Streaming) -> tuple[Vectors, State]:
        """Read all prompts, keeping attention sinks and a window."""
        ids, lengths = pad_rows(self.prompts, device_of(model))
        state, last = streaming.new_state(len(ids)), None
        for start, vectors, after in streaming.read(ids, lengths, state):
            state, last = after, _last(vectors, None if lengths is None else lengths - 1 - start, last)
        assert last is not None
        return last, state

    def with_capacity(self, model: AutoregressiveModel, state: State, length: int) -> State:
        """Return a state with room for the next token of each row, which then has this length at most."""
        if self.streaming is not None:
            return self.streaming.evict(state)
        return with_capacity(model, state, length, self.max_length)

    def initial_state(self, model: AutoregressiveModel, capacity: int) -> State:
        """Return the state before the prompts; the sources are encoded."""
        return self._initial_state(model, range(len(self.prompts)), capacity)

    def _initial_state(self, model: AutoregressiveModel, rows: Sequence[int], capacity: int) -> State:
        memory = None
        if self.sources is not None:
            memory = model.encode(*pad_sources([self.sources[row] for row in rows], device_of(model)))
        state = model.new_state(len(rows), capacity, memory)
        return dataclasses.replace(state, cache=self.cache)

    def _continue(self, model: AutoregressiveModel, rows: Sequence[int], state: State | None) -> tuple[Vectors, State]:
        """Read the rest of some prompts after a state; return each row's last vector, and the new state."""
        seen = [0] * len(rows) if state is None else state.lengths.tolist()
        left = [self.prompts[row][length:] for row, length in zip(rows, seen, strict=True)]
        ids, lengths = pad_rows(left, device_of(model))
        capacity = min(self.max_length, max(len(self.prompts[row]) for row in rows) + SPARE)
        last: Tensor | None = None
        for start in range(0, ids.shape[1], self.chunk):
            piece = ids[:, start : start + self.chunk]
            reached = max(min(n + len(rest), n + start + self.chunk) for n, rest in zip(seen, left, strict=True))
            if state is None:
                state = self._initial_state(model, rows, capacity if reached + self.chunk > capacity else reached)
            state = with_capacity(model, state, reached, capacity)
            new = None if lengths is None else (lengths - start).clamp(0, piece.shape[1])
            vectors, state = model.step(piece, state, lengths=new)
            last = _last(vectors, None if lengths is None else lengths - 1 - start, last)
        assert last is not None
        assert state is not None
        return last, state

    def _run_cached(self, model: AutoregressiveModel, prefix_cache: PrefixCache) -> tuple[Vectors, State]:
        """Read all prompts, each from its longest cached prefix; prefixes that several share are read first."""
        rows = self._text_rows()
        common = [one for one in common_prefixes(rows) if not prefix_cache.contains(*one, self.cache)]
        if common:
            sources = None if self.sources is None else tuple(source for _, source in common if source is not None)
            prefixes = dataclasses.replace(self, prompts=tuple(ids for ids, _ in common), sources=sources)
            prefixes._run_from_cache(model, prefix_cache)
        return self._run_from_cache(model, prefix_cache)

    def _run_from_cache(self, model: AutoregressiveModel, prefix_cache: PrefixCache) -> tuple[Vectors, State]:
        """Read each prompt from its longest cached prefix, and store the state after it."""
        rows = self._text_rows()
        found = [prefix_cache.find(ids[:-1], source, self.cache) for ids, source in rows]
        prefix_cache.reused_tokens += sum(one.length for one in found if one is not None)
        uncached = [row for row, one in enumerate(found) if one is None]
        cached = [row for row, one in enumerate(found) if one is not None]
        parts = [self._continue(model, uncached, None)] if uncached else []
        if cached:
            parts.append(self._continue(model, cached, State.join([one.state for one in found if one is not None])))
        vectors, state = _join([part[0] for part in parts]), State.join([part[1] for part in parts])
        order = torch.tensor([*uncached, *cached]).argsort()
        vectors, state = vectors[order.to(vectors.device)], state.select(order.tolist())
        for row, (ids, source) in enumerate(rows):
            prefix_cache.store(ids, state, source, row=row)
        return vectors, state

    def _text_rows(self) -> list[tuple[Prompt, Prompt | None]]:
        """Return each prompt with its source as ids, which a cache of prefixes keeps apart."""
        return [(prompt, source if isinstance(source, Sequence) else None) for prompt, source in self.rows()]

    def rows(self) -> list[tuple[Prompt, Source | None]]:
        """Return each prompt with its source."""
        sources: Sequence[Source | None] = (None,) * len(self.prompts) if self.sources is None else self.sources
        return list(zip(self.prompts, sources, strict=True))


def _join(several: Sequence[Vectors]) -> Vectors:
    """Concatenate vectors; those that carry a source to copy from are padded to the longest one's."""
    width = max(vectors.shape[-1] for vectors in several)
    return torch.cat([functional.pad(vectors, (0, width - vectors.shape[-1])) for vectors in several])


def _last(vectors: Tensor, index: Int[Tensor, " batch"] | None, before: Tensor | None) -> Vectors:
    """Return each row's vector at an index; if the index is in another chunk, the vector found before."""
    if index is None:
        return vectors[:, -1]
    inside = index.clamp(0, vectors.shape[1] - 1)
    found = vectors[torch.arange(len(index), device=index.device), inside]
    return found if before is None else found.where((index == inside)[:, None], before)


def prepare_prefill(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    options: PrefillOptions,
    prefix_cache: PrefixCache | None = None,
) -> Prefill:
    """Check prompts and sources, and compute how far each row may go."""
    streaming = None if options.streaming is None else Streaming(model, options.streaming)
    if model.reads != "ids":
        prefix_cache = None  # two sources of features are hardly ever the same
    if prefix_cache is not None and prefix_cache.model is not model:
        raise UsageError("prefix_cache: want one of this model, got one of another")
    endless = streaming is not None
    prompts = tuple(check_prompt(model, request.ids, options.begin, endless) for request in requests)
    sources = _sources(model, requests, options)
    wanted = [len(prompt) + options.max_tokens for prompt in prompts]
    if options.max_length_ratio is not None and sources is not None:
        ratio = options.max_length_ratio
        limits = [len(p) + SLACK + math.ceil(ratio * len(s)) for p, s in zip(prompts, sources, strict=True)]
        wanted = [min(pair) for pair in zip(wanted, limits, strict=True)]
    last = None if endless else longest_row(model)
    ends = tuple(end if last is None else min(end, last + 1) for end in wanted)  # the last token is never read
    pairs = zip(ends, wanted, strict=True)
    end_reasons = tuple(FinishReason.LENGTH if end == limit else FinishReason.CONTEXT for end, limit in pairs)
    return Prefill(prompts, sources, ends, end_reasons, options.chunk, options.cache, prefix_cache, streaming)


def _sources(
    model: AutoregressiveModel, requests: Sequence[Request], options: PrefillOptions
) -> tuple[Source, ...] | None:
    sources = [request.source for request in requests if request.source is not None]
    if not model.reads_source:
        if sources:
            raise UsageError("source: not used by a language model, which has no encoder")
        return None
    if len(sources) < len(requests):
        raise UsageError("source: want one for each row, because the encoder reads it")
    return tuple(check_source(model, source, options.begin) for source in sources)


def with_capacity(model: AutoregressiveModel, state: State, length: int, max_length: int) -> State:
    """Return a state with capacity for a length; a full state doubles its capacity, up to a maximum length."""
    if length <= state.capacity:
        return state
    capacity = max(length, min(max_length, 2 * state.capacity))
    model.decoder_tower.position.reserve(capacity)
    return state.resize(capacity)


def read_all(
    model: AutoregressiveModel, prefill: Prefill, rows: Sequence[Prompt]
) -> tuple[Stream, Int[Tensor, " batch"], State]:
    """Read rows that start with the prompts; return all hidden states, padded on the right, the lengths, the state."""
    ids, new = pad_rows(rows, device_of(model))
    state, pieces = prefill.initial_state(model, ids.shape[1]), []
    for first in range(0, ids.shape[1], prefill.chunk):
        piece = ids[:, first : first + prefill.chunk]
        real = None if new is None else (new - first).clamp(0, piece.shape[1])
        vectors, state = model.step(piece, state, lengths=real)
        pieces.append(vectors)
    lengths = torch.full((len(ids),), ids.shape[1], device=ids.device) if new is None else new
    return torch.cat(pieces, 1), lengths, state
