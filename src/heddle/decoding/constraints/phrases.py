"""Constrained decoding by phrases: texts that a row must contain, and texts that it must not, in any tokenization.

One automaton reads the bytes of all phrases (Aho & Corasick 1975). For each of its states, the transition of every id
is computed once, when a row first reaches the state. A row may not end before it contains all required phrases; with a
limit on new tokens, an id is allowed only if the missing phrases still fit after it.
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
from heddle.decoding.constraints.vocabulary import ByteColumns, Vocabulary

MAX_BYTES = 1 << 17  # bytes of all phrases: the automaton takes one kilobyte for each
MAX_REQUIRED_BYTES = 1 << 9  # of all phrases where some are required: the way to each is computed from every state
MAX_REQUIRED = 8  # phrases: distances are computed for each set of missing ones
CACHE_SIZE = 64  # states whose transitions are kept, each as long as the vocabulary
UNREACHABLE = np.int32(1 << 30)  # distance to what no tokens can spell

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Automaton:
    """Aho-Corasick automaton: the next state by byte, and the required phrases that end in each state."""

    table: Ints  # state x byte
    matched: Ints  # of each state, a bit for each required phrase
    dead: int  # the state after a forbidden phrase


def build_automaton(require: Sequence[bytes], forbid: Sequence[bytes]) -> Automaton:
    """Build the automaton that finds phrases anywhere in a text; state 0 has read nothing of any."""
    children: list[dict[int, int]] = [{}]
    matched, bad = [0], [False]
    for number, phrase in enumerate([*require, *forbid]):
        state = 0
        for byte in phrase:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                matched.append(0)
                bad.append(False)
            state = children[state][byte]
        if number < len(require):
            matched[state] |= 1 << number
        else:
            bad[state] = True
    dead = len(children)
    table = np.zeros((dead + 1, 256), np.int32)
    back = [0] * dead  # failure links: the longest prefix of a phrase that is a suffix of this state
    queue = deque([0])
    while queue:
        state = queue.popleft()
        if state:
            table[state] = table[back[state]]
            matched[state] |= matched[back[state]]
            bad[state] |= bad[back[state]]
        for byte, child in children[state].items():
            back[child] = int(table[state, byte])
            queue.append(child)
        for byte, child in children[state].items():
            table[state, byte] = child
    table[np.array([*bad, False])[table]] = dead
    table[dead] = dead
    return Automaton(table, np.array([*matched, 0], np.int32), dead)


def transitions(automaton: Automaton, table: ByteColumns, state: int) -> tuple[Ints, Ints]:
    """Return the state after each id, and the required phrases that it completes on its way."""
    ends = np.full(len(table.back), state, np.int32)
    matched = np.zeros(len(table.back), np.int32)
    next_state, requires = automaton.table.ravel(), bool(automaton.matched.any())
    for column in table.columns:
        reached = next_state.take(ends[: len(column)] * 256 + column)
        ends[: len(column)] = reached
        if requires:
            matched[: len(column)] |= automaton.matched.take(reached)
    return ends[table.back], matched[table.back]


@dataclass(frozen=True)
class _Transitions:
    """What each id does in one position: the next position, and the phrases that it completes."""

    positions: Ints
    matched: Ints
    open: NDArray[np.bool_]  # no forbidden phrase is completed


@final
class CompiledPhrases:
    """UTF-8 phrases compiled for a vocabulary: `phrases.begin()` constrains a row.

    A position numbers a state of the automaton together with how the next id is spelt.
    """

    def __init__(self, vocabulary: Vocabulary, require: Sequence[bytes] = (), forbid: Sequence[bytes] = ()) -> None:
        _check(require, forbid)
        self.vocabulary = vocabulary
        self.require, self.all = tuple(require), (1 << len(require)) - 1
        self.automaton = build_automaton(require, forbid)
        self.tables = vocabulary.tables
        self._silent = _flags(vocabulary.silent, len(vocabulary))
        self._fresh = _flags(vocabulary.fresh, len(vocabulary))
        self._stopping = _flags(vocabulary.stop, len(vocabulary))
        self.transitions = lru_cache(CACHE_SIZE)(self._transitions)
        self.mask = lru_cache(CACHE_SIZE)(self._mask)

    def begin(self, fresh: bool = True, max_tokens: int | None = None) -> "PhraseConstraint":
        """Return the constraint of one row; `fresh`: no text comes before it."""
        position = int(fresh and len(self.tables) > 1)
        if self.require:
            least = int(self.distances[position, self.all])
            if least == UNREACHABLE:
                raise ConfigError("require", f"this tokenizer cannot produce the phrases {_texts(self.require)}")
            if max_tokens is not None and least > max_tokens:
                raise ConfigError("require", f"the phrases need at least {least} tokens; max_tokens is {max_tokens}")
        return PhraseConstraint(self, position, self.all, max_tokens)

    def _transitions(self, position: int) -> _Transitions:
        state, fresh = divmod(position, len(self.tables))
        states, matched = transitions(self.automaton, self.tables[fresh], state)
        open = states != self.automaton.dead
        positions = states * len(self.tables)
        if fresh:
            positions = np.where(self._silent, position, positions)
        return _Transitions(positions + (self._fresh if len(self.tables) > 1 else 0), matched, open)

    @cached_property
    def distances(self) -> Ints:
        """Return the least number of tokens that complete the missing phrases: position x set of missing phrases."""
        steps = [self._steps(position) for position in range(self.automaton.dead * len(self.tables))]
        before = np.repeat(np.arange(len(steps)), [len(positions) for positions, _ in steps])
        positions, matched = (np.concatenate(column) for column in zip(*steps, strict=True))
        fewest = np.full((len(steps), self.all + 1), UNREACHABLE, np.int32)
        fewest[:, 0] = 0
        for missing in range(1, self.all + 1):  # a set that is missing later is a smaller number
            after = missing & ~matched
            completes = after != missing
            best = fewest[:, missing].copy()
            np.minimum.at(best, before[completes], fewest[positions[completes], after[completes]] + 1)
            previous = None
            while previous is None or (previous != best).any():  # one more token in each round
                previous = best.copy()
                np.minimum.at(best, before[~completes], previous[positions[~completes]] + 1)
            fewest[:, missing] = best
        return fewest

    @cached_property
    def max_distances(self) -> list[int]:
        """Return the largest distance of any position, for each set of missing phrases."""
        return [int(most) for most in np.where(self.distances < UNREACHABLE, self.distances, 0).max(0)]

    def _steps(self, position: int) -> tuple[Ints, Ints]:
        """Return the different transitions of the ids that add text in a position."""
        row = self._transitions(position)
        useful = row.open & ~self._silent & ~self._stopping
        both = np.unique(row.positions[useful].astype(np.int64) << MAX_REQUIRED | row.matched[useful])
        return (both >> MAX_REQUIRED).astype(np.int32), (both & ((1 << MAX_REQUIRED) - 1)).astype(np.int32)

    def distances_after(self, position: int, missing: int) -> Ints:
        """Return how many tokens are still needed after each id."""
        row = self.transitions(position)
        left = self.distances[np.where(row.open, row.positions, 0), missing & ~row.matched]
        left[self._stopping] = np.where(missing & ~row.matched[self._stopping], UNREACHABLE, 0)
        return np.where(row.open, left, UNREACHABLE)

    def _mask(self, position: int, missing: int, left: int | None) -> Mask | None:
        """Return which ids leave enough tokens for the missing phrases."""
        if self.require:
            allowed = self.distances_after(position, missing) <= (UNREACHABLE - 1 if left is None else left - 1)
        else:
            allowed = self.transitions(position).open
        return None if allowed.all() else torch.from_numpy(allowed)


@dataclass(frozen=True)
class PhraseConstraint:
    """The state of a row: its position in the automaton, the phrases that it lacks, and the tokens left."""

    phrases: CompiledPhrases
    position: int
    missing: int  # a bit for each required phrase
    left: int | None  # tokens that the row may still have

    def allowed(self) -> Mask | None:
        """Return which ids complete no forbidden phrase, and leave enough tokens for the missing ones."""
        left = self.left
        if left is not None and (not self.missing or left > self.phrases.max_distances[self.missing]):
            left = None  # enough, whichever id comes next
        return self.phrases.mask(self.position, self.missing, left)

    def advance(self, id: int) -> "PhraseConstraint":
        """Return the constraint after one more id."""
        row = self.phrases.transitions(self.position)
        if not 0 <= id < len(row.open) or not row.open[id]:
            raise UsageError(f"forbid: want an id that is allowed here, got {id}")
        left = None if self.left is None else self.left - 1
        return replace(self, position=int(row.positions[id]), missing=self.missing & ~int(row.matched[id]), left=left)

    @property
    def finished(self) -> bool:
        """Return False: the row may always continue."""
        return False

    @property
    def may_end(self) -> bool:
        """Tell whether the row contains all required phrases."""
        return not self.missing


def _check(require: Sequence[bytes], forbid: Sequence[bytes]) -> None:
    for name, phrases in (("require", require), ("forbid", forbid)):
        if not all(phrases):
            raise ConfigError(name, want="phrases of one character or more", got="")
    if len(require) > MAX_REQUIRED:
        raise ConfigError("require", want=f"at most {MAX_REQUIRED} phrases", got=len(require))
    size = sum(len(phrase) for phrase in [*require, *forbid])
    most = MAX_REQUIRED_BYTES if require else MAX_BYTES
    if size > most:
        where = "require and forbid" if require and forbid else "require" if require else "forbid"
        raise ConfigError(where, want=f"phrases of at most {most} bytes together", got=size)


def _flags(ids: frozenset[int], vocab: int) -> NDArray[np.bool_]:
    flags = np.zeros(vocab, np.bool_)
    flags[list(ids)] = True
    return flags


def _texts(phrases: Sequence[bytes]) -> list[str]:
    return [phrase.decode(errors="replace") for phrase in phrases]
