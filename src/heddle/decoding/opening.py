"""Opening: what is read before the first new token (prompts, and the sources of an encoder-decoder), and its state."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.how import How
from heddle.decoding.reach import device_of, padded, readable, readable_source, writer_of
from heddle.models import EncoderDecoder, Predictor
from heddle.nn import State

Prompt = Sequence[int]

SPARE = 128  # room for new tokens at first; it doubles when it is full, so that a long wish costs nothing by itself
SLACK = 10  # new tokens that any source may have, however short, before `How.stretch` counts


class Reason(StrEnum):
    """Why a row ended."""

    STOP = "stop"  # it gave one of the ids to stop at
    LENGTH = "length"  # it has as many tokens as were asked for
    CONTEXT = "context"  # the model has no positions left


@dataclass(frozen=True)
class Opening:
    """Prompts that a model can read, with a source for each where it is an encoder-decoder."""

    prompts: tuple[Prompt, ...]  # of an encoder-decoder: how the target begins
    sources: tuple[Prompt, ...] | None
    ends: tuple[int, ...]  # the length, prompt included, at which each row must stop
    cuts: tuple[Reason, ...]  # why it must stop there

    @property
    def most(self) -> int:
        """Return the room that the longest row may come to need; the last token is never read."""
        return max(self.ends) - 1

    def read(self, model: Predictor) -> tuple[Float[Tensor, "batch vocab"], State]:
        """Read all prompts side by side; return the scores of each row's next token, and the state."""
        device = device_of(model)
        ids, lengths = padded(self.prompts, device)
        room = min(self.most, ids.shape[1] + SPARE)
        vectors, state = model.step(ids, self._first_state(model, room), new=lengths)
        if lengths is None:
            return model.head.logits(vectors[:, -1]), state
        return model.head.logits(vectors[torch.arange(len(ids), device=device), lengths - 1]), state

    def _first_state(self, model: Predictor, room: int) -> State:
        if self.sources is None:
            return model.new_state(len(self.prompts), room)
        assert isinstance(model, EncoderDecoder)
        return model.begin(model.encode(*padded(self.sources, device_of(model))), room)


def opening(model: Predictor, prompts: Sequence[Prompt], how: How, sources: Sequence[Prompt] | None) -> Opening:
    """Check prompts and sources, and say how far each row may go."""
    filled = tuple(readable(model, prompt, how.begin) for prompt in prompts)
    read = _sources(model, len(filled), how, sources)
    wanted = [len(prompt) + how.max_tokens for prompt in filled]
    if how.stretch is not None and read is not None:
        limits = [len(p) + SLACK + math.ceil(how.stretch * len(s)) for p, s in zip(filled, read, strict=True)]
        wanted = [min(pair) for pair in zip(wanted, limits, strict=True)]
    last = None if model.longest is None else model.longest + 1
    ends = tuple(end if last is None else min(end, last) for end in wanted)
    cuts = tuple(Reason.LENGTH if end == wish else Reason.CONTEXT for end, wish in zip(ends, wanted, strict=True))
    return Opening(filled, read, ends, cuts)


def _sources(model: Predictor, rows: int, how: How, sources: Sequence[Prompt] | None) -> tuple[Prompt, ...] | None:
    if not isinstance(model, EncoderDecoder):
        if sources is not None:
            raise UsageError("source: want none, for a language model has no encoder to read it")
        return None
    if sources is None:
        raise UsageError("source: want one for each row, for an encoder-decoder writes what its source says")
    if len(sources) != rows:
        raise UsageError(f"source: want {rows}, one for each row, got {len(sources)}")
    return tuple(readable_source(model, source, how.begin) for source in sources)


def with_room(model: Predictor, state: State, length: int, most: int) -> State:
    """Return a state in which rows may reach a length; what is added doubles, up to the most that is wanted."""
    if length <= state.room:
        return state
    room = min(most, 2 * state.room)
    writer_of(model).position.reach(room)
    return state.grow(room)
