"""Streaming detokenization: the whole text, never half a character, and nothing of a stop string."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    TextStream,
    Tokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)

TEXT = "The cat sat on the mat; naïve façades cost 10 €.\nAnd then? 日本語 🙂🙂 the end. " * 8
KINDS: dict[str, Tokenizer] = {
    "byte": ByteTokenizer().train([]),
    "character": CharacterTokenizer().train([TEXT]),
    "word": WordTokenizer().train([TEXT]),
    "bpe": BpeTokenizer(vocab=300).train([TEXT]),
    "wordpiece": WordPieceTokenizer(vocab=60).train([TEXT]),
    "unigram": UnigramTokenizer(vocab=260).train([TEXT]),
}
BYTES = KINDS["byte"]


def pour(tokenizer: Tokenizer, ids: list[int], after: list[int] | None = None, stop: tuple[str, ...] = ()) -> list[str]:
    stream = TextStream(tokenizer, after or [], stop)
    return [*(stream.push(id) for id in ids), stream.flush()]


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_joined_are_the_text(kind: str) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(TEXT)
    assert "".join(pour(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_text_goes_on_from_what_came_before(kind: str) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(TEXT)
    for cut in (1, 7, 40):
        before = tokenizer.decode(ids[:cut])
        if not before.endswith("\ufffd"):  # a prompt is whole text
            assert before + "".join(pour(tokenizer, ids[cut:], ids[:cut])) == tokenizer.decode(ids)


@given(st.lists(st.integers(0, BYTES.vocab - 1), max_size=120))
@settings(deadline=None, max_examples=200)
def test_any_bytes_stream_to_their_text(ids: list[int]) -> None:
    assert "".join(pour(BYTES, ids)) == BYTES.decode(ids)


def test_no_piece_cuts_a_character() -> None:
    pieces = pour(BYTES, list("a€🙂b".encode()))
    assert [piece for piece in pieces if piece] == ["a", "€", "🙂", "b"]


def test_broken_bytes_do_not_hold_the_text_back() -> None:
    stream = TextStream(BYTES)
    shown = "".join(stream.push(0xFF) for _ in range(50))
    assert len(shown) == 49


@pytest.mark.parametrize("kind", ["byte", "bpe", "word"])
def test_text_ends_before_the_first_stop(kind: str) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(TEXT)
    whole = tokenizer.decode(ids)
    for stop in (("mat",), ("then", "sat"), ("日本",), ("\n",), ("e ",)):
        shown = "".join(pour(tokenizer, ids, stop=stop))
        assert shown == whole[: min(whole.find(s) for s in stop if s in whole)]


def test_the_beginning_of_a_stop_is_held_back_until_it_is_none() -> None:
    stream = TextStream(BYTES, stop=("END",))
    assert [stream.push(b) for b in b"aENbEN"] == ["a", "", "", "ENb", "", ""]
    assert stream.flush() == "EN"
    assert not stream.stopped


def test_after_a_stop_nothing_more_comes() -> None:
    stream = TextStream(BYTES, stop=("x",))
    assert [stream.push(b) for b in b"axb"] == ["a", "", ""]
    assert stream.stopped
    assert stream.flush() == ""


def test_an_empty_stop_never_stops() -> None:
    assert "".join(pour(BYTES, list(b"abc"), stop=("",))) == "abc"


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_bytes_that_are_no_text_are_not_read_over_and_over(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, draw, read = KINDS[kind], random.Random(0), 0
    decode, names = Tokenizer.decode, [id for id in range(tokenizer.vocab) if tokenizer.decode([id]) == "\ufffd"]
    rows = [[names[0]] * 500, [names[-1]] * 500, draw.choices(names, k=500)]
    whole = [tokenizer.decode(ids) for ids in rows]

    def counted(self: Tokenizer, ids: list[int]) -> str:
        nonlocal read
        read += len(ids)
        return decode(self, ids)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    assert ["".join(pour(tokenizer, ids)) for ids in rows] == whole
    assert read < 3 * 500 * 64
