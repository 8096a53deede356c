"""Word boundaries: each token belongs to one word, and words are separated by whitespace, for every tokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    UnigramTokenizer,
    Word,
    WordPieceTokenizer,
    WordTokenizer,
    word_start_ids,
    words_of,
)

STORY = [
    "the cat sat on the mat, and the dog sat on the log; naïve 日本語 🙂!\n" * 30,
    "".join(f"and then number {i} met number {i + 1} at the station\n" for i in range(200)),
]
KINDS: dict[str, Tokenizer] = {
    "byte": ByteTokenizer().train([]),
    "character": CharacterTokenizer().train(STORY),
    "lower": CharacterTokenizer(lowercase=True).train(STORY),
    "word": WordTokenizer().train(STORY),
    "attached": WordTokenizer(punctuation="attached", lowercase=True).train(STORY),
    "bpe": BpeTokenizer(vocab=290).train(STORY),
    "lower bpe": BpeTokenizer(vocab=290, lowercase=True).train(STORY),
    "wordpiece": WordPieceTokenizer(vocab=80).train(STORY),
    "unigram": UnigramTokenizer(vocab=270).train(STORY),
}
ANY = st.characters(exclude_categories=["Cs"])
TEXTS = st.lists(st.one_of(st.text(ANY, max_size=6), st.sampled_from(["the", " cat", "  ", "\n", "\u3000", "İ", "\0"])))


@pytest.mark.parametrize("kind", KINDS)
@given(parts=TEXTS)
@settings(max_examples=60, deadline=None)
def test_words_are_the_text_and_hold_each_token_once(kind: str, parts: list[str]) -> None:
    text, tokenizer = "".join(parts), KINDS[kind]
    spans = tokenizer.spans(text)
    assert len(spans) == len(tokenizer.encode(text))
    assert all(0 <= start <= stop <= len(text) for start, stop in spans)
    words = words_of(text, spans)
    assert " ".join(word.text for word in words).split() == text.split()
    edges = [0, *(word.last for word in words)]
    assert [word.first for word in words] == edges[:-1]
    assert edges[-1] == len(spans) and edges == sorted(edges)


@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram", "character"])
@given(text=st.text(ANY, max_size=40))
@settings(max_examples=40, deadline=None)
def test_kinds_that_keep_everything_have_a_token_for_each_character(kind: str, text: str) -> None:
    covered = {place for start, stop in KINDS[kind].spans(text) for place in range(start, stop)}
    assert covered == set(range(len(text)))


@pytest.mark.parametrize("kind", KINDS)
def test_spans_go_on_over_the_pieces_of_a_long_text(kind: str) -> None:
    line = "the cat sat on the mat "
    text = line * 1000
    words = words_of(text, KINDS[kind].spans(text))
    assert [word.text for word in words] == text.split()
    counts = [word.last - word.first for word in words]
    assert counts[6:-6] == counts[6:12] * 998  # every line is made of the same tokens


@pytest.mark.parametrize(
    ("text", "spans", "words"),
    [
        ("a b", [(0, 1), (1, 2), (2, 3)], [("a", 0, 1), ("b", 1, 3)]),  # a space is of the word after it
        ("one two", [(0, 4), (4, 7)], [("one", 0, 1), ("two", 1, 2)]),  # unless its token begins in the one before
        ("a\n\nb ", [(0, 1), (1, 2), (2, 4), (4, 5)], [("a", 0, 1), ("b", 1, 4)]),  # the last goes with the last word
        ("New York is", [(0, 8), (8, 11)], [("New York", 0, 1), ("is", 1, 2)]),  # words that share a token are one
        ("a b c d", [(0, 1), (1, 5), (5, 7)], [("a", 0, 1), ("b c", 1, 2), ("d", 2, 3)]),
        ("€", [(0, 1), (0, 1), (0, 1)], [("€", 0, 3)]),
        ("a \0 b", [(0, 1), (4, 5)], [("a", 0, 1), ("\0", 1, 1), ("b", 1, 2)]),  # left out by the tokenizer
        ("a b", [], [("a", 0, 0), ("b", 0, 0)]),
        (" \n", [(0, 1), (1, 2)], [("", 0, 2)]),
        (" ", [], []),
        ("", [], []),
    ],
)
def test_tokens_go_to_words(text: str, spans: list[tuple[int, int]], words: list[tuple[str, int, int]]) -> None:
    assert words_of(text, spans) == [Word(*word) for word in words]


def test_an_unknown_word_keeps_its_own_text() -> None:
    text = "the zebra sat"
    assert [word.text for word in words_of(text, KINDS["word"].spans(text))] == text.split()


def test_tokens_that_begin_with_whitespace_are_known() -> None:
    bpe = KINDS["bpe"]
    begins = {bpe.token(id) for id in word_start_ids(bpe)}
    assert {" ", "\n", "\t", " the", " sat"} <= begins and "the" not in begins
    assert [chr(id) for id in word_start_ids(KINDS["byte"])] == [c for c in map(chr, range(128)) if c.isspace()]
    assert [KINDS["wordpiece"].token(id) for id in word_start_ids(KINDS["wordpiece"])] == []
