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
        return (self.between(i, i + 1) for i in range(len(self.plain)))

    def __getitem__(self, key: int | slice) -> "MarkedText":
        if isinstance(key, int):
            return MarkedText(self.plain[key], self.marks[key])
        return MarkedText(self.plain[key], self.marks[key])

    def __add__(self, other: "MarkedText") -> "MarkedText":
        return MarkedText(self.plain + other.plain, self.marks + other.marks)

    def __mul__(self, times: int) -> "MarkedText":
        return MarkedText(self.plain * times, self.marks * times)

    def between(self, start: int, stop: int) -> "MarkedText":
        """Return the characters from one position to another."""
        return MarkedText(self.plain[start:stop], self.marks[start:stop])

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

    def strip(self, chars: str | None = None, left: bool = True, right: bool = True) -> "MarkedText":
        """Return the text without whitespace, or without some characters, at its ends."""
        start = len(self.plain) - len(self.plain.lstrip(chars)) if left else 0
        stop = len(self.plain.rstrip(chars)) if right else len(self.plain)
        return self.between(start, max(start, stop))

    def split(self, by: str | None = None, most: int = -1, right: bool = False) -> list["MarkedText"]:
        """Split at a separator, or at whitespace."""
        pieces = self.plain.rsplit(by, most) if right else self.plain.split(by, most)
        return list(self._located(pieces, by))

    def _located(self, pieces: Iterable[str], by: str | None) -> Iterator["MarkedText"]:
        start = 0
        for piece in pieces:
            if by is None:  # whitespace lies between, and no piece begins with it but the first
                start = self.plain.index(piece, start)
            yield self.between(start, start + len(piece))
            start += len(piece) + (0 if by is None else len(by))

    def splitlines(self, keep: bool = False) -> list["MarkedText"]:
        """Return the lines, with or without their ends."""
        lines: list[MarkedText] = []
        start = 0
        for line, bare in zip(self.plain.splitlines(True), self.plain.splitlines(), strict=True):
            lines.append(self.between(start, start + len(line if keep else bare)))
            start += len(line)
        return lines

    def replace(self, old: str, new: "MarkedText", most: int = -1) -> "MarkedText":
        """Replace a text by another, at most `most` times."""
        return new.join(self.split(old, most)) if old in self.plain else self

    def join(self, texts: Sequence["MarkedText"]) -> "MarkedText":
        """Join texts with this one between them."""
        return MarkedText(self.plain.join(t.plain for t in texts), self.marks.join(t.marks for t in texts))


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
