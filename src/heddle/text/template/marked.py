"""Marked text: a string with a mark on every character that says whether the template wrote it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

TRUSTED = 1  # from the template's literals, or from the tokenizer
WRITTEN = 2  # inside `{% generation %}`: the model writes it


@final
class MarkedText:
    """An immutable text with a mark for every character; it equals any other of the same characters.

    Whatever a template does to a text, a mark stays with its character. Where characters cannot be followed, the result
    has only the marks that all of its sources have throughout: trust may be lost, never gained.
    """

    __slots__ = ("marks", "plain")

    def __init__(self, plain: str, marks: int | bytes = 0) -> None:
        self.plain = plain
        self.marks = bytes((marks,)) * len(plain) if isinstance(marks, int) else marks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MarkedText) and self.plain == other.plain

    def __hash__(self) -> int:
        return hash(self.plain)

    def __len__(self) -> int:
        return len(self.plain)

    def __repr__(self) -> str:
        return f"Marked({self.plain!r}, {self.marks!r})"

    def __iter__(self) -> Iterator["MarkedText"]:
        return (self[i] for i in range(len(self.plain)))

    def __getitem__(self, key: int | slice) -> "MarkedText":
        return MarkedText(self.plain[key], self.marks[key])

    def __add__(self, other: "MarkedText") -> "MarkedText":
        return MarkedText(self.plain + other.plain, self.marks + other.marks)

    def __mul__(self, times: int) -> "MarkedText":
        return MarkedText(self.plain * times, self.marks * times)

    def marked(self, mark: int) -> "MarkedText":
        """Return the same text with a mark on every character."""
        return MarkedText(self.plain, self.marks.translate(bytes(m | mark for m in range(256))))

    def spans(self, mark: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the maximal ranges with or without a mark: start, stop, which."""
        has = self.marks.translate(bytes(bool(m & mark) for m in range(256)))
        start = 0
        while start < len(has):
            found = has.find(1 - has[start], start)
            stop = found if found >= 0 else len(has)
            yield start, stop, bool(has[start])
            start = stop

    # --- what templates do to text ------------------------------------------------------------------------------------

    def cased(self, change: Callable[[str], str]) -> "MarkedText":
        """Return the text with its case changed; marks are kept where the length stays the same."""
        plain = change(self.plain)
        return MarkedText(plain, self.marks) if len(plain) == len(self.plain) else derived(plain, [self])

    def located(self, pieces: Iterable[str], gap: int = 0) -> list["MarkedText"]:
        """Return pieces of this text, given in order, with their marks; between two is a gap, or only whitespace."""
        found, start = list[MarkedText](), 0
        for piece in pieces:
            start = self.plain.index(piece, start)
            found.append(self[start : start + len(piece)])
            start += len(piece) + gap
        return found

    def strip(self, chars: str | None = None, left: bool = True, right: bool = True) -> "MarkedText":
        """Return the text without whitespace, or without some characters, at its ends."""
        start = len(self.plain) - len(self.plain.lstrip(chars)) if left else 0
        stop = len(self.plain.rstrip(chars)) if right else len(self.plain)
        return self[start : max(start, stop)]

    def split(self, by: str | None = None, most: int = -1, right: bool = False) -> list["MarkedText"]:
        """Split at a separator, or at whitespace."""
        pieces = self.plain.rsplit(by, most) if right else self.plain.split(by, most)
        return self.located(pieces, len(by or ""))

    def replace(self, old: str, new: "MarkedText", most: int = -1) -> "MarkedText":
        """Replace a text by another, at most `most` times."""
        return new.join(self.split(old, most)) if old in self.plain else self

    def join(self, texts: Sequence["MarkedText"]) -> "MarkedText":
        """Join texts with this one between them."""
        return MarkedText(self.plain.join(t.plain for t in texts), self.marks.join(t.marks for t in texts))


EMPTY = MarkedText("")


def literal(plain: str) -> MarkedText:
    """Return text written by the template itself."""
    return MarkedText(plain, TRUSTED)


def derived(plain: str, sources: Iterable[MarkedText]) -> MarkedText:
    """Return a text derived from others, of which no character can be traced."""
    marks = TRUSTED | WRITTEN
    for source in sources:
        for mark in set(source.marks):
            marks &= mark
    return MarkedText(plain, marks)
