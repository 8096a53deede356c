"""Generation: prompts -> new ids. All prompts are read at once, then every row grows by one token a step."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import torch

from heddle.core import UsageError, replace
from heddle.decoding.beam import search
from heddle.decoding.how import How
from heddle.decoding.opening import Opening, Prompt, Reason, opening, with_room
from heddle.decoding.reach import at_rest
from heddle.decoding.sampling import choose
from heddle.models import Predictor

Halt = Callable[[int, int], bool]  # (row, new id) -> whether the row is finished, beyond the ids to stop at


@dataclass(frozen=True)
class Completion:
    """What one row gave: its new ids, the stop included, and why it ended."""

    ids: list[int]
    reason: Reason


def generate(
    model: Predictor, prompts: Sequence[Prompt], how: How, sources: Sequence[Prompt] | None = None
) -> list[list[int]]:
    """Return the new ids of each prompt, a stop included; with several samples, those of a prompt side by side.

    An encoder-decoder is given a source for each prompt, which is then how the target begins, and mostly empty.
    """
    return [completion.ids for completion in complete(model, prompts, how, sources)]


def complete(
    model: Predictor,
    prompts: Sequence[Prompt],
    how: How,
    sources: Sequence[Prompt] | None = None,
    halt: Halt | None = None,
) -> list[Completion]:
    """Return the new ids of each prompt and why each ended; a row's ids never depend on the other rows."""
    if how.beams > 1:
        return _best(model, prompts, how, sources, halt)
    ids: list[list[int]] = [[] for _ in range(len(prompts) * how.samples)]
    reasons: dict[int, Reason] = {}
    for piece in _grow(model, prompts, how, sources, halt):
        ids[piece.row].append(piece.id)
        if piece.reason is not None:
            reasons[piece.row] = piece.reason
    return [Completion(row, reasons[i]) for i, row in enumerate(ids)]


def stream(model: Predictor, prompt: Prompt, how: How, source: Prompt | None = None) -> Iterator[int]:
    """Yield the ids of the first sample one by one, as they are chosen; beams are known at the end only."""
    if how.beams > 1:
        yield from generate(model, [prompt], replace(how, samples=1), None if source is None else [source])[0]
        return
    sources = None if source is None else [source]
    with contextlib.closing(_grow(model, [prompt], replace(how, samples=1), sources)) as pieces:
        for piece in pieces:
            yield piece.id


def _best(
    model: Predictor, prompts: Sequence[Prompt], how: How, sources: Sequence[Prompt] | None, halt: Halt | None
) -> list[Completion]:
    """Return the best sequences that beams find, as many for each prompt as are asked for."""
    if halt is not None:
        raise UsageError("stop: want none with several beams, which end at the end token alone")
    found = search(model, prompts, how, sources)
    for best in found:
        if len(best) < how.samples:
            raise UsageError(f"samples: want at most {len(best)}, all the sequences that there are, got {how.samples}")
    return [Completion(sequence.ids, sequence.reason) for best in found for sequence in best]


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


def _rows(start: Opening, samples: int) -> list[_Row]:
    """Return the rows of all prompts, the samples of a prompt side by side."""
    return [
        _Row(prompt * samples + sample, sample, len(start.prompts[prompt]), start.ends[prompt], start.cuts[prompt])
        for prompt in range(len(start.prompts))
        for sample in range(samples)
    ]


@torch.inference_mode()
def _grow(
    model: Predictor,
    prompts: Sequence[Prompt],
    how: How,
    sources: Sequence[Prompt] | None = None,
    halt: Halt | None = None,
) -> Generator[_Piece, None, None]:
    """Yield every new id of every row, step by step."""
    if not prompts:
        return
    start, stop = opening(model, prompts, how, sources), frozenset(how.stop)
    rows = _rows(start, how.samples)
    with at_rest(model):
        scores, state = start.read(model)
        if how.samples > 1:
            each = torch.arange(len(prompts), device=scores.device).repeat_interleave(how.samples)
            scores, state = scores[each], state.select(each)
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
            state = with_room(model, state, max(row.length for row in rows), start.most)
            vectors, state = model.step(chosen[:, None], state)
            scores = model.head.logits(vectors[:, -1])
