"""The error model of a noisy channel (Brill & Moore 2000): how probable a given misspelling of a right word is.

The right word is split into pieces of one to three letters, each written as a piece of zero to three letters; the most
probable such alignment counts. The probabilities of these edits are counted over aligned pairs of right and wrong
words. Single letters start from a prior that knows the keyboard and similar sounds, so that the model works untrained.
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

FIRST, LAST = "^", "$"  # word boundaries are pieces too: errors at the beginning differ from others
MAX_LETTERS = 3  # letters of a piece
PRIOR = 40.0  # weight of the prior, in observed letters
KEPT, DELETED, SUBSTITUTED, INSERTED, UNKNOWN = 0.91, 0.025, 0.035, 0.03, 0.001  # of a letter of a misspelt word
TRANSPOSED = 0.01  # prior probability for a pair of letters
NEVER = -60.0  # nats, in place of minus infinity: no misspelling is impossible
BAND = 2  # width of the alignment band, beyond the difference of the lengths
MAX_BYTES = 1 << 26  # bytes of a file of errors
FORMAT = "heddle errors 1"

ErrorPair = tuple[str, str]  # right, wrong
EditOperation = tuple[str, str]  # a piece, and how it was written


def prior(letter: str) -> dict[str, float]:
    """Return the prior probability of each way to write a letter; they sum to one."""
    if letter == LAST:
        return {LAST: 1.0}
    near, alike = key_neighbours(letter), similar_sounding(letter)
    others = {c: 6.0 * (c in near) + 6.0 * (c in alike) + 0.5 for c in LETTERS if c != letter}
    added = {c: 8.0 * (c == letter) + 2.0 * (c in key_neighbours(letter)) + 1.0 for c in LETTERS}
    plain = unicodedata.normalize("NFD", letter)[0]
    if plain != letter and plain in others:
        others[plain] += 100.0
    found = {letter + c: INSERTED * weight / sum(added.values()) for c, weight in added.items()}
    if letter == FIRST:
        return found | {FIRST: 1 - INSERTED}
    found |= {c: SUBSTITUTED * weight / sum(others.values()) for c, weight in others.items()}
    return found | {letter: KEPT, "": DELETED}


@final
class ErrorModel:
    """The probabilities of every way to write a piece: counts smoothed by the prior."""

    def __init__(self, seen: Mapping[str, int] | None = None, changed: Mapping[str, Mapping[str, int]] | None = None):
        self.seen = {} if seen is None else seen  # count of each piece in right words
        self.changed = {} if changed is None else changed  # count of each way in which it was miswritten

    def probabilities(self, piece: str) -> dict[str, float]:
        """Return the probability of each way to write a piece; they sum to one.

        Of a longer piece, the remaining probability, under the key of the piece itself, goes to writing it letter by
        letter. A letter reserves a small probability for characters outside the alphabet, which is left out here.
        """
        changed = self.changed.get(piece, {})
        total = self.seen.get(piece, 0) + PRIOR
        if len(piece) > 1:
            found = {written: count / total for written, count in changed.items()}
            if len(piece) == 2 and piece[0] != piece[1] and FIRST not in piece and LAST not in piece:
                transposed = piece[::-1]
                found[transposed] = found.get(transposed, 0.0) + PRIOR * TRANSPOSED / total
            return found | {piece: 1 - sum(found.values())}
        share = 1.0 if piece == LAST else 1 - UNKNOWN
        found = {written: PRIOR * share * p / total for written, p in prior(piece).items()}
        for written, count in changed.items():
            found[written] = found.get(written, 0.0) + count / total
        kept = self.seen.get(piece, 0) - sum(changed.values())
        found[piece] += max(0, kept) / total
        return found

    @cached_property
    def _table(self) -> dict[str, dict[str, float]]:
        """Return the log-probabilities of all edits that differ from writing letter by letter."""
        pieces = {*LETTERS, FIRST, LAST, *self.changed}
        pieces |= {a + b for a in LETTERS for b in LETTERS if a != b}
        table = {}
        for piece in pieces:
            probabilities = self.probabilities(piece)
            if len(piece) > 1:
                del probabilities[piece]
            table[piece] = {written: math.log(p) for written, p in probabilities.items() if p > 0}
        return table

    def _rewrites(self, piece: str) -> dict[str, float] | None:
        """Return the ways to write a piece; new letters are added to the table."""
        ways = self._table.get(piece)
        if ways is None and len(piece) == 1:
            ways = self._table[piece] = {w: math.log(p) for w, p in self.probabilities(piece).items() if p > 0}
        return ways

    def logprob(self, wrong: str, right: str) -> float:
        """Return the log-probability, in nats, that a right word is misspelt this way, given that it is misspelt."""
        return self._best_alignments(wrong, right)[-1][-1]

    def align(self, wrong: str, right: str) -> list[EditOperation]:
        """Return the most probable alignment of a right word with a wrong one, word boundaries included."""
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
        """Return how many letters of each word the last edit of the best alignment takes."""
        i, j = len(right), len(wrong)
        for a in range(1, min(MAX_LETTERS, i) + 1):
            ways = self._rewrites(right[i - a :]) or {}
            for b in range(min(MAX_LETTERS, j) + 1):
                p = ways.get(wrong[j - b :])
                if p is not None and best[i - a][j - b] + p == best[i][j]:
                    return a, b
        return int(i > 0), int(j > 0)  # an unknown character, or a boundary that is left out

    def _best_alignments(self, wrong: str, right: str) -> list[list[float]]:
        """Return the best log-probability of each pair of prefixes (Viterbi, within a band)."""
        right, wrong = FIRST + right + LAST, FIRST + wrong + LAST
        band = abs(len(right) - len(wrong)) + BAND
        best = [[NEVER * max(i, j) for j in range(len(wrong) + 1)] for i in range(len(right) + 1)]
        ends = [[wrong[j - b : j] for b in range(min(MAX_LETTERS, j) + 1)] for j in range(len(wrong) + 1)]
        for i in range(1, len(right) + 1):
            pieces = [(best[i - a], self._rewrites(right[i - a : i])) for a in range(1, min(MAX_LETTERS, i) + 1)]
            known = [(before, ways) for before, ways in pieces if ways is not None]
            row = best[i]
            for j in range(max(1, i - band), min(len(wrong), i + band) + 1):
                top = best[i - 1][j - 1] + NEVER / 4  # a character that no letter is known to become
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
        """Count the edits of pairs of right and wrong words, aligned by the model of the round before."""
        known = [(right.lower(), wrong.lower()) for right, wrong in pairs if right.lower() != wrong.lower()]
        model = cls()
        for turn in range(rounds):
            longest = (
                MAX_LETTERS if turn == rounds - 1 else 1
            )  # single letters first: their alignments are more reliable
            seen: Counter[str] = Counter()
            changed: defaultdict[str, Counter[str]] = defaultdict(Counter)
            for right, wrong in known:
                seen.update(_pieces(FIRST + right + LAST, longest))
                for piece, written in _joined_edits(model.align(wrong, right), longest):
                    changed[piece][written] += 1
            model = cls(seen, {piece: dict(ways) for piece, ways in changed.items()})
        return model._pruned()

    def _pruned(self) -> "ErrorModel":
        """Drop edits of long pieces that were seen once only: they are unreliable, and many."""
        changed = {
            piece: kept
            for piece, ways in self.changed.items()
            if (kept := {w: c for w, c in ways.items() if c > 1 or len(piece) == 1})
        }
        return ErrorModel({piece: count for piece, count in self.seen.items() if piece in changed}, changed)

    def save(self, path: Path) -> None:
        """Write the counts as JSON."""
        write_json(path, {"format": FORMAT, "seen": dict(self.seen), "changed": self.changed})

    @classmethod
    def load(cls, path: Path) -> "ErrorModel":
        """Read what `save` wrote; refuse anything else."""
        data = parse_json(read_text(path, MAX_BYTES), str(path))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DataError(f"{path}: want errors as `heddle correct --learn` writes them")
        seen, changed = _counts(data.get("seen"), path), data.get("changed")
        if not isinstance(changed, dict):
            raise DataError(f"{path}: changed: want counts of letter sequences, got none")
        return cls(seen, {piece: _counts(ways, path) for piece, ways in changed.items()})


def _counts(data: Any, path: Path) -> dict[str, int]:
    if not isinstance(data, dict) or not all(isinstance(n, int) and n >= 0 for n in data.values()):
        raise DataError(f"{path}: want counts of letter sequences: whole numbers, 0 or more")
    return data


def _pieces(word: str, longest: int) -> Iterator[str]:
    for size in range(1, longest + 1):
        yield from (word[i : i + size] for i in range(len(word) - size + 1))


def _joined_edits(edits: list[EditOperation], longest: int) -> Iterator[EditOperation]:
    """Yield every run of edits that changes something and is short enough on both sides."""
    for start in range(len(edits)):
        right = wrong = ""
        for piece, written in edits[start:]:
            right, wrong = right + piece, wrong + written
            if len(right) > longest or len(wrong) > MAX_LETTERS:
                break
            if right and right != wrong:
                yield right, wrong
