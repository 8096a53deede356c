"""Phrases: texts that a row must hold, and texts that it must not, in whatever tokens they are spelt.

One automaton reads the bytes of all phrases (Aho & Corasick 1975). For each of its states, what every id of the
vocabulary would lead to is worked out once, when a row first stands there. A row may not end before all is said; and
with the number of tokens that it may still have, an id is allowed only if what is missing can still be said after it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError, UsageError
from heddle.decoding.constraints.constraint import Mask
from heddle.decoding.constraints.vocabulary import Columns, Vocabulary

LONGEST = 1 << 17  # bytes of all phrases: the automaton takes one kilobyte for each
PLANNED = 1 << 9  # bytes of all phrases where some are required: the way to each is planned from every state
MOST = 8  # phrases required at once: the plan is made for each set of those that are missing
KEPT = 64  # states whose rows are kept, of which each is as long as the vocabulary
NEVER = np.int32(1 << 30)  # tokens to say what cannot be said

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Automaton:
    """Where each byte leads from each state, which required phrases end there, and where a forbidden one does."""

    table: Ints  # state x byte
    said: Ints  # of each state, a bit for each required phrase
    dead: int  # the state of all rows that hold a forbidden phrase


def automaton_of(require: Sequence[bytes], forbid: Sequence[bytes]) -> Automaton:
    """Build the automaton that finds phrases anywhere in a text; state 0 knows of nothing."""
    children: list[dict[int, int]] = [{}]
    said, bad = [0], [False]
    for number, phrase in enumerate([*require, *forbid]):
        state = 0
        for byte in phrase:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                said.append(0)
                bad.append(False)
            state = children[state][byte]
        if number < len(require):
            said[state] |= 1 << number
        else:
            bad[state] = True
    dead = len(children)
    table = np.zeros((dead + 1, 256), np.int32)
    back = [0] * dead  # the longest other phrase's beginning that a state also ends with
    queue = deque([0])
    while queue:
        state = queue.popleft()
        if state:
            table[state] = table[back[state]]
            said[state] |= said[back[state]]
            bad[state] |= bad[back[state]]
        for byte, child in children[state].items():
            back[child] = int(table[state, byte])
            queue.append(child)
        for byte, child in children[state].items():
            table[state, byte] = child
    table[np.array([*bad, False])[table]] = dead
    table[dead] = dead
    return Automaton(table, np.array([*said, 0], np.int32), dead)


def walked(automaton: Automaton, side: Columns, state: int) -> tuple[Ints, Ints]:
    """Return the state that each id leads to, and the required phrases that it finishes on its way."""
    ends = np.full(len(side.back), state, np.int32)
    said = np.zeros(len(side.back), np.int32)
    leads, speaks = automaton.table.ravel(), bool(automaton.said.any())
    for column in side.columns:
        reached = leads.take(ends[: len(column)] * 256 + column)
        ends[: len(column)] = reached
        if speaks:
            said[: len(column)] |= automaton.said.take(reached)
    return ends[side.back], said[side.back]


@dataclass(frozen=True)
class _Row:
    """What each id would do to a row in one place: the place that it leads to, and what it says."""

    places: Ints
    said: Ints
    open: NDArray[np.bool_]  # no forbidden phrase is finished


@final
class CompiledPhrases:
    """Phrases made ready for a vocabulary: `book.begin()` guides a row. They are given as UTF-8."""

    def __init__(self, vocabulary: Vocabulary, require: Sequence[bytes] = (), forbid: Sequence[bytes] = ()) -> None:
        _check(require, forbid)
        self.vocabulary = vocabulary
        self.require, self.all = tuple(require), (1 << len(require)) - 1
        self.automaton = automaton_of(require, forbid)
        self.sides = vocabulary.sides
        self._silent = _flags(vocabulary.silent, len(vocabulary))
        self._fresh = _flags(vocabulary.fresh, len(vocabulary))
        self._stopping = _flags(vocabulary.stop, len(vocabulary))
        self.row = lru_cache(KEPT)(self._row)
        self.mask = lru_cache(KEPT)(self._mask)

    def begin(self, fresh: bool = True, room: int | None = None) -> "PhraseConstraint":
        """Return a guide of one row; `fresh`: no text stands before it, `room`: the tokens that it may have."""
        place = self.place(0, fresh)
        if self.require:
            least = int(self.plan[place, self.all])
            if least == NEVER:
                raise ConfigError("require", want="phrases that can be written", got=_texts(self.require))
            if room is not None and least > room:
                raise ConfigError(
                    "require", want=f"phrases that {room} tokens can say, not {least}", got=_texts(self.require)
                )
        return PhraseConstraint(self, place, self.all, room)

    def place(self, state: int, fresh: bool) -> int:
        """Return the number of a state of the automaton, with how the next id is spelt."""
        return state * len(self.sides) + (fresh and len(self.sides) > 1)

    def _row(self, place: int) -> _Row:
        state, fresh = divmod(place, len(self.sides))
        states, said = walked(self.automaton, self.sides[fresh], state)
        open = states != self.automaton.dead
        places = states * len(self.sides)
        if fresh:
            places = np.where(self._silent, place, places)
        return _Row(places + (self._fresh if len(self.sides) > 1 else 0), said, open)

    @cached_property
    def plan(self) -> Ints:
        """Return the least number of tokens that say what is missing: place x set of missing phrases."""
        steps = [self._steps(place) for place in range(self.automaton.dead * len(self.sides))]
        before = np.repeat(np.arange(len(steps)), [len(places) for places, _ in steps])
        places, said = (np.concatenate(column) for column in zip(*steps, strict=True))
        fewest = np.full((len(steps), self.all + 1), NEVER, np.int32)
        fewest[:, 0] = 0
        for missing in range(1, self.all + 1):  # what is missing later is a smaller number
            after = missing & ~said
            says = after != missing
            best = fewest[:, missing].copy()
            np.minimum.at(best, before[says], fewest[places[says], after[says]] + 1)
            turn = None
            while turn is None or (turn != best).any():  # one more token at each turn
                turn = best.copy()
                np.minimum.at(best, before[~says], turn[places[~says]] + 1)
            fewest[:, missing] = best
        return fewest

    @cached_property
    def furthest(self) -> list[int]:
        """Return the most tokens that any place may need for a set of missing phrases, if it can say them at all."""
        return [int(most) for most in np.where(self.plan < NEVER, self.plan, 0).max(0)]

    def _steps(self, place: int) -> tuple[Ints, Ints]:
        """Return the different things that one id of text can do in a place."""
        row = self._row(place)
        useful = row.open & ~self._silent & ~self._stopping
        both = np.unique(row.places[useful].astype(np.int64) << MOST | row.said[useful])
        return (both >> MOST).astype(np.int32), (both & ((1 << MOST) - 1)).astype(np.int32)

    def tokens_after(self, place: int, missing: int) -> Ints:
        """Return how many tokens each id would still leave to be said."""
        row = self.row(place)
        left = self.plan[np.where(row.open, row.places, 0), missing & ~row.said]
        left[self._stopping] = np.where(missing & ~row.said[self._stopping], NEVER, 0)
        return np.where(row.open, left, NEVER)

    def _mask(self, place: int, missing: int, left: int | None) -> Mask | None:
        """Tell which ids leave enough tokens for what is missing."""
        if self.require:
            allowed = self.tokens_after(place, missing) <= (NEVER - 1 if left is None else left - 1)
        else:
            allowed = self.row(place).open
        return None if allowed.all() else torch.from_numpy(allowed)


@dataclass(frozen=True)
class PhraseConstraint:
    """Where a row stands: in the automaton, in what it has yet to say, and in its length."""

    book: CompiledPhrases
    place: int
    missing: int  # a bit for each required phrase
    left: int | None  # tokens that the row may still have

    def allowed(self) -> Mask | None:
        """Tell which ids hold nothing forbidden, and leave room for what is missing."""
        left = self.left
        if left is not None and (not self.missing or left > self.book.furthest[self.missing]):
            left = None  # enough, wherever the next id leads
        return self.book.mask(self.place, self.missing, left)

    def take(self, id: int) -> "PhraseConstraint":
        """Return where the row stands after one more id."""
        row = self.book.row(self.place)
        if not 0 <= id < len(row.open) or not row.open[id]:
            raise UsageError(f"forbid: want an id that is allowed here, got {id}")
        left = None if self.left is None else self.left - 1
        return replace(self, place=int(row.places[id]), missing=self.missing & ~int(row.said[id]), left=left)

    @property
    def finished(self) -> bool:
        """Tell that the row may always go on."""
        return False

    @property
    def may_end(self) -> bool:
        """Tell whether all is said."""
        return not self.missing


def _check(require: Sequence[bytes], forbid: Sequence[bytes]) -> None:
    for name, phrases in (("require", require), ("forbid", forbid)):
        if not all(phrases):
            raise ConfigError(name, want="phrases of one character or more", got="")
    if len(require) > MOST:
        raise ConfigError("require", want=f"at most {MOST} phrases", got=len(require))
    size = sum(len(phrase) for phrase in [*require, *forbid])
    most = PLANNED if require else LONGEST
    if size > most:
        where = "require and forbid" if require and forbid else "require" if require else "forbid"
        raise ConfigError(where, want=f"phrases of at most {most} bytes together", got=size)


def _flags(ids: frozenset[int], vocab: int) -> NDArray[np.bool_]:
    flags = np.zeros(vocab, np.bool_)
    flags[list(ids)] = True
    return flags


def _texts(phrases: Sequence[bytes]) -> list[str]:
    return [phrase.decode(errors="replace") for phrase in phrases]
