"""Generation: prompts -> new ids. All prompts are read at once, then every row grows by one token a step."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from heddle.core import replace
from heddle.decoding.how import How
from heddle.decoding.reach import at_rest, device_of, limit_of, readable
from heddle.decoding.sampling import choose
from heddle.models import LanguageModel
from heddle.nn import State

Prompt = Sequence[int]
Halt = Callable[[int, int], bool]  # (row, new id) -> whether the row is finished, beyond the ids to stop at

SPARE = 128  # room for new tokens at first; it doubles when it is full, so that a long wish costs nothing by itself


class Reason(StrEnum):
    """Why a row ended."""

    STOP = "stop"  # it gave one of the ids to stop at
    LENGTH = "length"  # it has as many tokens as were asked for
    CONTEXT = "context"  # the model has no positions left


@dataclass(frozen=True)
class Completion:
    """What one row gave: its new ids, the stop included, and why it ended."""

    ids: list[int]
    reason: Reason


def generate(model: LanguageModel, prompts: Sequence[Prompt], how: How) -> list[list[int]]:
    """Return the new ids of each prompt, a stop included; with several samples, those of a prompt side by side."""
    return [completion.ids for completion in complete(model, prompts, how)]


def complete(model: LanguageModel, prompts: Sequence[Prompt], how: How, halt: Halt | None = None) -> list[Completion]:
    """Return the new ids of each prompt and why each ended; a row's ids never depend on the other rows."""
    ids: list[list[int]] = [[] for _ in range(len(prompts) * how.samples)]
    reasons: dict[int, Reason] = {}
    for piece in _grow(model, prompts, how, halt):
        ids[piece.row].append(piece.id)
        if piece.reason is not None:
            reasons[piece.row] = piece.reason
    return [Completion(row, reasons[i]) for i, row in enumerate(ids)]


def stream(model: LanguageModel, prompt: Prompt, how: How) -> Iterator[int]:
    """Yield the ids of the first sample one by one, as they are chosen."""
    with contextlib.closing(_grow(model, [prompt], replace(how, samples=1))) as pieces:
        for piece in pieces:
            yield piece.id


@dataclass(frozen=True)
class _Piece:
    """One new id of one row, and why the row ended if it did."""

    row: int
    id: int
    reason: Reason | None


@dataclass
class _Row:
    """A row that still grows."""

    number: int
    sample: int
    length: int  # prompt and new tokens together
    end: int  # the length at which it must stop
    cut: Reason  # why it must stop there

    def take(self, id: int, stop: frozenset[int], halt: Halt | None) -> _Piece:
        self.length += 1
        halted = halt is not None and halt(self.number, id)
        reason = Reason.STOP if halted or id in stop else self.cut if self.length == self.end else None
        return _Piece(self.number, id, reason)


@torch.inference_mode()
def _grow(
    model: LanguageModel, prompts: Sequence[Prompt], how: How, halt: Halt | None = None
) -> Generator[_Piece, None, None]:
    """Yield every new id of every row, step by step."""
    if not prompts:
        return
    filled = [readable(model, prompt, how.begin) for prompt in prompts]
    limit = limit_of(model)
    rows = [_row(i, filled[i // how.samples], limit, how) for i in range(len(filled) * how.samples)]
    most = max(row.end for row in rows) - 1  # the last token is never read
    stop = frozenset(how.stop)
    with at_rest(model):
        scores, state = _prefill(model, filled, min(most, max(map(len, filled)) + SPARE), how.samples)
        while True:
            chosen = choose(scores, how, [(row.sample, row.length) for row in rows])
            pieces = [row.take(id, stop, halt) for row, id in zip(rows, chosen.tolist(), strict=True)]
            yield from pieces
            kept = [i for i, piece in enumerate(pieces) if piece.reason is None]
            if not kept:
                return
            if len(kept) < len(rows):
                rows = [rows[i] for i in kept]
                alive = torch.tensor(kept, device=chosen.device)
                chosen, state = chosen[alive], state.select(alive)
            if max(row.length for row in rows) > state.room:
                state = _with_room(model, state, min(most, 2 * state.room))
            vectors, state = model.step(chosen[:, None], state)
            scores = model.head.logits(vectors[:, -1])


def _with_room(model: LanguageModel, state: State, room: int) -> State:
    model.position.reach(room)
    return state.grow(room)


def _row(number: int, prompt: Prompt, limit: int | None, how: How) -> _Row:
    wanted = len(prompt) + how.max_tokens
    end, cut = (wanted, Reason.LENGTH) if limit is None or wanted <= limit + 1 else (limit + 1, Reason.CONTEXT)
    return _Row(number, number % how.samples, len(prompt), end, cut)


def _prefill(model: LanguageModel, prompts: Sequence[Prompt], room: int, samples: int) -> tuple[Tensor, State]:
    """Read all prompts side by side; return the scores of each row's next token, and the state."""
    device = device_of(model)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = int(lengths.max())
    padded = torch.tensor([[*p, *(0,) * (longest - len(p))] for p in prompts], device=device)
    even = bool((lengths == longest).all())  # rows of one length spare recurrent parts the sorting
    vectors, state = model.step(padded, model.new_state(len(prompts), room), new=None if even else lengths)
    last = vectors[torch.arange(len(prompts), device=device), lengths - 1]
    scores = model.head.logits(last)
    if samples == 1:
        return scores, state
    rows = torch.arange(len(prompts), device=device).repeat_interleave(samples)
    return scores[rows], state.select(rows)
