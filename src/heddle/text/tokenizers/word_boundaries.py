"""Word boundaries: which tokens make up each word of a text, for any tokenizer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from heddle.text.tokenizers.tokenizer import Tokenizer

WORD = re.compile(r"\S+")  # as `str.split`
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Word:
    """A word and the range of its tokens, from `first` to before `last`."""

    text: str
    first: int
    last: int


def words_of(text: str, spans: Sequence[Span]) -> list[Word]:
    """Split a text at whitespace, and assign each token to one word.

    `spans` are the character offsets of each token, from `Tokenizer.spans`. A token belongs to the word that it begins
    in; a whitespace token to the word after it, or the last one. Words that share a token are joined, such as
    `New York`; a word that the tokenizer drops has no tokens. Whitespace alone is one empty word, if it has tokens.
    """
    places = [found.span() for found in WORD.finditer(text)]
    if not places:
        return [Word("", 0, len(spans))] if spans else []
    ends = [0] * len(places)  # where each word's tokens end
    joined = [False] * len(places)  # to the word before
    word = 0
    for number, (start, stop) in enumerate(spans, 1):
        while word + 1 < len(places) and places[word][1] <= start:
            word += 1
        while word + 1 < len(places) and places[word + 1][0] < stop:
            word += 1
            joined[word] = True
        ends[word] = number
    return _group_words(text, places, ends, joined)


def _group_words(text: str, places: list[Span], ends: list[int], joined: list[bool]) -> list[Word]:
    """Return the words with their tokens; those without a boundary between them are one."""
    words: list[Word] = []
    start, first = 0, 0
    for number, (place, end) in enumerate(zip(places, ends, strict=True)):
        if not joined[number]:
            start = place[0]
        if number + 1 == len(places) or not joined[number + 1]:
            last = max(first, end)  # a word without tokens is empty
            words.append(Word(text[start : place[1]], first, last))
            first = last
    return words


def word_start_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of tokens that begin with whitespace and so start a word."""
    control = frozenset(tokenizer.special.values())
    return [id for id in range(tokenizer.vocab) if id not in control and tokenizer.token(id)[:1].isspace()]
