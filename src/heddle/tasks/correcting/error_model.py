"""Errors: how probable it is that a right word is written in a given wrong way, learnt from pairs of both.

A noisy channel after Brill & Moore (2000): the right word falls into pieces of one to three letters, each is written
as some piece of none to three, and the best way to do so counts. What a piece becomes is counted over aligned pairs;
single letters begin from a prior that knows the keyboard and like sounds, so that all works before anything is learnt.
"""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, final

from heddle.core import DataError
from heddle.core.system import parse_json, read_text, write_json
from heddle.tasks.correcting.keyboard import LETTERS, key_neighbours, similar_sounding

FIRST, LAST = "^", "$"  # edges are pieces too, for errors at the beginning differ from others
LONGEST = 3  # letters of a piece
PRIOR = 40.0  # as many letters seen as the prior weighs
KEPT, DROPPED, SWAPPED, ADDED, STRANGE = 0.91, 0.025, 0.035, 0.03, 0.001  # of a letter, in a word with an error
CROSSED = 0.01  # of a pair of letters, before pairs were counted
NEVER = -60.0  # nats, instead of none: no way of writing is wholly out of the question
BAND = 2  # letters by which two words may be out of step, beyond the difference of their lengths
LARGEST = 1 << 26  # bytes of a file of errors
FORMAT = "heddle errors 1"

ErrorPair = tuple[str, str]  # right, wrong
Odds = Mapping[str, Mapping[str, float]]  # right piece -> written piece -> log-probability
EditOperation = tuple[str, str]  # a piece, and what it was written as


def prior(letter: str) -> dict[str, float]:
    """Return how probable each way to write a letter is before anything was learnt; the odds sum to one."""
    if letter == LAST:
        return {LAST: 1.0}
    others = {
        c: 6.0 * (c in key_neighbours(letter)) + 6.0 * (c in similar_sounding(letter)) + 0.5
        for c in LETTERS
        if c != letter
    }
    added = {c: 8.0 * (c == letter) + 2.0 * (c in key_neighbours(letter)) + 1.0 for c in LETTERS}
    plain = unicodedata.normalize("NFD", letter)[0]
    if plain != letter and plain in others:
        others[plain] += 100.0
    odds = {letter + c: ADDED * weight / sum(added.values()) for c, weight in added.items()}
    if letter == FIRST:
        return odds | {FIRST: 1 - ADDED}
    odds |= {c: SWAPPED * weight / sum(others.values()) for c, weight in others.items()}
    return odds | {letter: KEPT, "": DROPPED}


@final
class ErrorModel:
    """The odds of every way to write a piece, from counts over the prior."""

    def __init__(self, seen: Mapping[str, int] | None = None, changed: Mapping[str, Mapping[str, int]] | None = None):
        self.seen = {} if seen is None else seen  # how often each piece was to be written
        self.changed = {} if changed is None else changed  # and how often it became something else

    def odds(self, piece: str) -> dict[str, float]:
        """Return how probable each way to write a piece is; they sum to one.

        What is left of a longer piece, under the key of the piece itself, is written letter by letter. A letter has a
        small share for signs beyond the alphabet, left out here.
        """
        changed = self.changed.get(piece, {})
        total = self.seen.get(piece, 0) + PRIOR
        if len(piece) > 1:
            found = {written: count / total for written, count in changed.items()}
            if len(piece) == 2 and piece[0] != piece[1] and FIRST not in piece and LAST not in piece:
                crossed = piece[::-1]
                found[crossed] = found.get(crossed, 0.0) + PRIOR * CROSSED / total
            return found | {piece: 1 - sum(found.values())}
        share = 1.0 if piece == LAST else 1 - STRANGE
        found = {written: PRIOR * share * p / total for written, p in prior(piece).items()}
        for written, count in changed.items():
            found[written] = found.get(written, 0.0) + count / total
        kept = self.seen.get(piece, 0) - sum(changed.values())
        found[piece] += max(0, kept) / total
        return found

    @cached_property
    def _table(self) -> dict[str, dict[str, float]]:
        """Return the logarithms of all odds that differ from letter by letter."""
        pieces = {*LETTERS, FIRST, LAST, *self.changed}
        pieces |= {a + b for a in LETTERS for b in LETTERS if a != b}
        table = {}
        for piece in pieces:
            odds = self.odds(piece)
            if len(piece) > 1:
                del odds[piece]
            table[piece] = {written: math.log(p) for written, p in odds.items() if p > 0}
        return table

    def _rewrites(self, piece: str) -> dict[str, float] | None:
        """Return the ways to write a piece; letters met for the first time join the table."""
        ways = self._table.get(piece)
        if ways is None and len(piece) == 1:
            ways = self._table[piece] = {w: math.log(p) for w, p in self.odds(piece).items() if p > 0}
        return ways

    def logprob(self, wrong: str, right: str) -> float:
        """Return the log-probability, in nats, that a right word is written so, given that it is written wrong."""
        return self._best_alignments(wrong, right)[-1][-1]

    def steps(self, wrong: str, right: str) -> list[EditOperation]:
        """Return the most probable way from a right word to a wrong one, piece by piece, edges included."""
        best = self._best_alignments(wrong, right)
        right, wrong = FIRST + right + LAST, FIRST + wrong + LAST
        i, j = len(right), len(wrong)
        found: list[EditOperation] = []
        while i or j:
            a, b = self._last_edit(best, right[:i], wrong[:j])
            found.append((right[i - a : i], wrong[j - b : j]))
            i, j = i - a, j - b
        return found[::-1]

    def _last_edit(self, best: list[list[float]], right: str, wrong: str) -> tuple[int, int]:
        """Return how many letters of each the last step of the best way takes."""
        i, j = len(right), len(wrong)
        for a in range(1, min(LONGEST, i) + 1):
            ways = self._rewrites(right[i - a :]) or {}
            for b in range(min(LONGEST, j) + 1):
                p = ways.get(wrong[j - b :])
                if p is not None and best[i - a][j - b] + p == best[i][j]:
                    return a, b
        return int(i > 0), int(j > 0)  # a strange sign, or an edge that is left out

    def _best_alignments(self, wrong: str, right: str) -> list[list[float]]:
        """Return the best log-probability of each pair of beginnings."""
        right, wrong = FIRST + right + LAST, FIRST + wrong + LAST
        band = abs(len(right) - len(wrong)) + BAND
        best = [[NEVER * max(i, j) for j in range(len(wrong) + 1)] for i in range(len(right) + 1)]
        ends = [[wrong[j - b : j] for b in range(min(LONGEST, j) + 1)] for j in range(len(wrong) + 1)]
        for i in range(1, len(right) + 1):
            pieces = [(best[i - a], self._rewrites(right[i - a : i])) for a in range(1, min(LONGEST, i) + 1)]
            known = [(before, ways) for before, ways in pieces if ways is not None]
            row = best[i]
            for j in range(max(1, i - band), min(len(wrong), i + band) + 1):
                top = best[i - 1][j - 1] + NEVER / 4  # a sign that no letter is known to become
                for before, ways in known:
                    b = j
                    for end in ends[j]:
                        p = ways.get(end)
                        if p is not None and before[b] + p > top:
                            top = before[b] + p
                        b -= 1
                row[j] = top
        return best

    @classmethod
    def learn(cls, pairs: Iterable[ErrorPair], rounds: int = 2) -> "ErrorModel":
        """Count what pieces become over pairs of right and wrong words, aligned by the model of the round before."""
        known = [(right.lower(), wrong.lower()) for right, wrong in pairs if right.lower() != wrong.lower()]
        model = cls()
        for turn in range(rounds):
            longest = LONGEST if turn == rounds - 1 else 1  # letters first: alignments of long pieces say little
            seen: Counter[str] = Counter()
            changed: defaultdict[str, Counter[str]] = defaultdict(Counter)
            for right, wrong in known:
                seen.update(_pieces(FIRST + right + LAST, longest))
                for piece, written in _joined(model.steps(wrong, right), longest):
                    changed[piece][written] += 1
            model = cls(seen, {piece: dict(ways) for piece, ways in changed.items()})
        return model._pruned()

    def _pruned(self) -> "ErrorModel":
        """Leave out what long pieces became once only: it says little and takes much room."""
        changed = {
            piece: kept
            for piece, ways in self.changed.items()
            if (kept := {w: c for w, c in ways.items() if c > 1 or len(piece) == 1})
        }
        return ErrorModel({piece: count for piece, count in self.seen.items() if piece in changed}, changed)

    def save(self, path: Path) -> None:
        """Write all counts as JSON."""
        write_json(path, {"format": FORMAT, "seen": dict(self.seen), "changed": self.changed})

    @classmethod
    def load(cls, path: Path) -> "ErrorModel":
        """Read what `save` wrote, refusing anything else in one line."""
        data = parse_json(read_text(path, LARGEST), str(path))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DataError(f"{path}: want errors as `heddle correct --learn` writes them")
        seen, changed = _counts(data.get("seen"), path), data.get("changed")
        if not isinstance(changed, dict):
            raise DataError(f"{path}: changed: want counts of pieces, got none")
        return cls(seen, {piece: _counts(ways, path) for piece, ways in changed.items()})


def _counts(data: Any, path: Path) -> dict[str, int]:
    if not isinstance(data, dict) or not all(isinstance(n, int) and n >= 0 for n in data.values()):
        raise DataError(f"{path}: want counts of pieces: whole numbers, 0 or more")
    return data


def _pieces(word: str, longest: int) -> Iterator[str]:
    for size in range(1, longest + 1):
        yield from (word[i : i + size] for i in range(len(word) - size + 1))


def _joined(steps: list[EditOperation], longest: int) -> Iterator[EditOperation]:
    """Yield every stretch of steps that changes something and is short enough on both sides."""
    for start in range(len(steps)):
        right = wrong = ""
        for piece, written in steps[start:]:
            right, wrong = right + piece, wrong + written
            if len(right) > longest or len(wrong) > LONGEST:
                break
            if right and right != wrong:
                yield right, wrong
