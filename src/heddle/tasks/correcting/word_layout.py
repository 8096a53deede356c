"""Layout: where the words of a text stand, and how a new word is put in the place and the dress of an old one."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from heddle.tasks.correcting.lexicon import WORD

CHUNK = re.compile(r"\S+")
CODE = re.compile(r"[\d@\\/_<>{}=#~^|*+]|[^\W\d_]\.[^\W\d_]")  # addresses, paths, numbers, markup: not for us
SENTENCE = re.compile(r"[.!?][\"'”’)\]]*\s+")
LONGEST = 300  # characters of a piece at which it ends with its sentence
HARDEST = 450  # and at which it ends with a word, whatever comes


@dataclass(frozen=True)
class WordSpan:
    """A word of a text: where it stands and what it is."""

    start: int
    end: int
    text: str


def find_words(text: str) -> Iterator[WordSpan]:
    """Yield the words of a text that may be corrected; what holds digits or marks of addresses and code is left out."""
    for chunk in CHUNK.finditer(text):
        if CODE.search(chunk[0]) or (not chunk[0].isascii() and any(map(unicodedata.combining, chunk[0]))):
            continue
        for word in WORD.finditer(text, chunk.start(), chunk.end()):
            yield WordSpan(word.start(), word.end(), word[0])


def split_segments(text: str) -> Iterator[tuple[int, int]]:
    """Yield the places of stretches that a model can read at once, cut after sentences where it can be done."""
    start = 0
    while len(text) - start > LONGEST:
        stop = start
        for sentence in SENTENCE.finditer(text, start, min(len(text), start + HARDEST)):
            if sentence.end() - start > LONGEST and stop > start:
                break
            stop = sentence.end()
        if stop == start:
            stop = _gap(text, start)
        yield start, stop
        start = stop
    if start < len(text):
        yield start, len(text)


def _gap(text: str, start: int) -> int:
    """Return where the last word before the hardest end begins; a text without gaps is cut there."""
    stop = min(len(text), start + HARDEST)
    if stop == len(text):
        return stop
    found = max(text.rfind(space, start, stop) for space in " \n\t")
    return found + 1 if found > start else stop


def is_word_fragment(text: str, start: int, end: int, stop: int) -> bool:
    """Tell whether a stretch is only a part of a run of letters, which a piece's end at `stop` cut through."""
    before, after = text[start - 1 : start], text[end : end + 1] if end == stop else ""
    return before.isalpha() or after.isalpha()


def begins_sentence(text: str, at: int) -> bool:
    """Tell whether a word is the first of its sentence."""
    before = text[:at].rstrip(" \t\"'“‘(").rstrip()
    return not before or before[-1] in ".!?:\n" or "\n" in text[len(before) : at]


def match_case(word: str, like: str) -> str:
    """Return a word in the case and with the apostrophe of another."""
    if "’" in like:
        word = word.replace("'", "’")
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if like[:1].isupper() else word
