"""Words of a text with their offsets, segments of a long text, and the letter case of a replaced word."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from heddle.tasks.correcting.lexicon import WORD

CHUNK = re.compile(r"\S+")
CODE = re.compile(r"[\d@\\/_<>{}=#~^|*+]|[^\W\d_]\.[^\W\d_]")  # addresses, paths, numbers, markup: never corrected
SENTENCE = re.compile(r"[.!?][\"'”’)\]]*\s+")
MAX_CHARACTERS = 300  # characters after which a segment ends with its sentence
HARD_LIMIT = 450  # characters after which it ends with a word


@dataclass(frozen=True)
class WordSpan:
    """A word of a text and its offsets."""

    start: int
    end: int
    text: str


def find_words(text: str) -> Iterator[WordSpan]:
    """Yield the words of a text that may be corrected; strings that look like addresses or code are left out."""
    for chunk in CHUNK.finditer(text):
        if CODE.search(chunk[0]) or (not chunk[0].isascii() and any(map(unicodedata.combining, chunk[0]))):
            continue
        for word in WORD.finditer(text, chunk.start(), chunk.end()):
            yield WordSpan(word.start(), word.end(), word[0])


def split_segments(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of segments that a model can score at once, split after sentences if possible."""
    start = 0
    while len(text) - start > MAX_CHARACTERS:
        stop = start
        for sentence in SENTENCE.finditer(text, start, min(len(text), start + HARD_LIMIT)):
            if sentence.end() - start > MAX_CHARACTERS and stop > start:
                break
            stop = sentence.end()
        if stop == start:
            stop = _gap(text, start)
        yield start, stop
        start = stop
    if start < len(text):
        yield start, len(text)


def _gap(text: str, start: int) -> int:
    """Return where the last word before the hard limit begins; a text without spaces is split at the limit."""
    stop = min(len(text), start + HARD_LIMIT)
    if stop == len(text):
        return stop
    found = max(text.rfind(space, start, stop) for space in " \n\t")
    return found + 1 if found > start else stop


def is_word_fragment(text: str, start: int, end: int, stop: int) -> bool:
    """Tell whether a span is part of a longer run of letters, which the end of a segment at `stop` split."""
    before, after = text[start - 1 : start], text[end : end + 1] if end == stop else ""
    return before.isalpha() or after.isalpha()


def begins_sentence(text: str, at: int) -> bool:
    """Tell whether a word is the first of its sentence."""
    before = text[:at].rstrip(" \t\"'“‘(").rstrip()
    return not before or before[-1] in ".!?:\n" or "\n" in text[len(before) : at]


def match_case(word: str, like: str) -> str:
    """Return a word with the letter case and the apostrophe of another."""
    if "’" in like:
        word = word.replace("'", "’")
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if like[:1].isupper() else word
