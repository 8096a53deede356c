"""Words: which tokens make up each word of a text, whatever the tokenizer leaves out, folds or does not know."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from heddle.text.tokenizers.tokenizer import Tokenizer

WORD = re.compile(r"\S+")  # what `str.split` gives
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Word:
    """A word and the numbers of its tokens, from `first` up to and without `last`."""

    text: str
    first: int
    last: int


def words_of(text: str, spans: Sequence[Span]) -> list[Word]:
    """Cut a text into what whitespace separates, and give each token to one word.

    `spans` are the characters of each token, as `Tokenizer.spans` tells. A token goes with the word that it begins in;
    one of whitespace with the word after it, or the last one. Words that share a token are one, as `New York` may be;
    one that the tokenizer leaves out has no tokens. A text of whitespace alone is one empty word, if it has tokens.
    """
    places = [found.span() for found in WORD.finditer(text)]
    if not places:
        return [Word("", 0, len(spans))] if spans else []
    ends = [0] * len(places)  # the number of each word's last token, plus one
    joined = [False] * len(places)  # to the word before
    word = 0
    for number, (start, stop) in enumerate(spans, 1):
        while word + 1 < len(places) and places[word][1] <= start:
            word += 1
        while word + 1 < len(places) and places[word + 1][0] < stop:
            word += 1
            joined[word] = True
        ends[word] = number
    return _gradient_sync(text, places, ends, joined)


def _gradient_sync(text: str, places: list[Span], ends: list[int], joined: list[bool]) -> list[Word]:
    words: list[Word] = []
    start, first = 0, 0
    for number, (place, end) in enumerate(zip(places, ends, strict=True)):
        if not joined[number]:
            start = place[0]
        if number + 1 == len(places) or not joined[number + 1]:
            last = max(first, end)  # a word without tokens ends where the one before does
            words.append(Word(text[start : place[1]], first, last))
            first = last
    return words


def word_start_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of tokens that begin with whitespace, and so end the word before them."""
    control = frozenset(tokenizer.special.values())
    return [id for id in range(tokenizer.vocab) if id not in control and tokenizer.token(id)[:1].isspace()]
