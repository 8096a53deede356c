"""Word and sentence boundaries: which tokens make up each word of a text, where sentences end, for any tokenizer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from heddle.core import UsageError
from heddle.text.tokenizers.token_bytes import token_bytes_of
from heddle.text.tokenizers.tokenizer import Tokenizer

WORD = re.compile(r"\S+")  # as `str.split`
Span = tuple[int, int]
ENDINGS = (".", "!", "?", "\n", "…", "。", "！", "？")
CLOSING = " \"')]}»”’"  # what may follow the end of a sentence


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


# --- by id, for token streams without their text ----------------------------------------------------------------------


def token_texts(tokenizer: Tokenizer) -> list[str]:
    """Return what each id adds to a text, with the space before a word that decoding would write."""
    try:
        return [word.decode(errors="replace") for word in token_bytes_of(tokenizer).inside]
    except UsageError:  # a decoder of another library
        return ["" if id in tokenizer.added else tokenizer.token(id) for id in range(tokenizer.vocab)]


def word_edges(tokenizer: Tokenizer) -> tuple[list[bool], list[bool]]:
    """Tell which ids begin a word, and after which ids another word begins.

    A word begins with whitespace before it; continuations such as `##ing` have none. Where a mark ends a word instead
    (`</w>`), the next token begins one. Without either, as for single characters of Chinese, each token is a word.
    """
    match tokenizer.decoder():
        case {"type": "BPEDecoder", "suffix": str(suffix)}:
            return [False] * tokenizer.vocab, [suffix in (name or "") for name in tokenizer.names()]
    begins = [text[:1].isspace() for text in token_texts(tokenizer)]
    return begins if any(begins) else [True] * tokenizer.vocab, [False] * tokenizer.vocab


def sentence_ends(tokenizer: Tokenizer) -> list[bool]:
    """Tell which ids end a sentence: their text ends with a full stop, `!`, `?` or a line end, quotes aside."""
    return [text.rstrip(CLOSING).endswith(ENDINGS) for text in token_texts(tokenizer)]
