"""Laws of text, over every kind: round trip, ids below vocab, no control token from text, many texts as one by one."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.core import kinds
from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    load_tokenizer,
)

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789éßñ"
MARKS = "<|>'’,.;:_-^!?()[]{}#$%&*+=/\\\"@`~…"
OTHERS = "日本🙂"
ALPHABET = LETTERS + MARKS + OTHERS + " \n\t"
TRAINING = [
    " ".join(c + c + c for c in LETTERS + MARKS + OTHERS),
    "the cat sat on the mat, and the dog didn't; <|end|> <|mask|> ends here.\n\nThe End!  \n" * 20,
    "".join(f"def name_{i}(x): return x + {i}\n\t" for i in range(200)),
]
CONFIGS: dict[str, TokenizerConfig] = {
    "byte": ByteTokenizer(special=("<|mask|>",)),
    "character": CharacterTokenizer(special=("<|mask|>",)),
    "word": WordTokenizer(special=("<|mask|>",)),
    "bpe": BpeTokenizer(vocab=360, special=("<|mask|>",)),
    "wordpiece": WordPieceTokenizer(vocab=390, special=("<|mask|>",)),
    "unigram": UnigramTokenizer(vocab=330, special=("<|mask|>",)),
}
MADE = {kind: config.train(TRAINING) for kind, config in CONFIGS.items()}
BYTE_LEVEL = {"byte", "bpe", "unigram"}
every_kind = pytest.mark.parametrize("kind", list(CONFIGS))
quick = settings(max_examples=60, deadline=None)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
our_text = st.text(st.sampled_from(ALPHABET), max_size=80)


class Encoder(Protocol):
    """What the laws look at."""

    vocab: int

    def encode(self, text: str) -> list[int]: ...
    def encode_many(self, texts: Sequence[str]) -> list[list[int]]: ...
    def decode(self, ids: Iterable[int]) -> str: ...


def law_round_trip(encoder: Encoder, text: str, expected: str) -> None:
    """Assert that a text comes back, but for what its kind declares."""
    assert encoder.decode(encoder.encode(text)) == expected


def law_ids_below_vocab(encoder: Encoder, text: str) -> None:
    """Assert that every id has a place in the vocabulary."""
    assert all(0 <= i < encoder.vocab for i in encoder.encode(text))


def law_no_control_from_text(encoder: Encoder, text: str, controls: set[int]) -> None:
    """Assert that what a text spells never becomes a control token."""
    assert controls.isdisjoint(encoder.encode(text))


def law_many_is_one(encoder: Encoder, texts: list[str]) -> None:
    """Assert that texts encoded together equal each encoded alone."""
    assert encoder.encode_many(texts) == [encoder.encode(text) for text in texts]


# --- what each kind declares of its own normal form -------------------------------------------------------------------

WORD = re.compile(r"\n|\w+(?:['’]\w+)*|[^\w\s]")
KNOWN_WORDS = {word for text in TRAINING for word in WORD.findall(text)}


def normal(kind: str, text: str) -> str:
    """Return what decoding gives back, written down apart from the library."""
    if kind in BYTE_LEVEL:
        return text
    if kind == "character":
        known = set("".join(TRAINING))
        return "".join(c if c in known else "\ufffd" for c in text)
    if kind == "word":
        words = [word if word in KNOWN_WORDS else "\ufffd" for word in WORD.findall(text)]
        return re.sub(" ?\n ?", "\n", " ".join(words))
    plain = unicodedata.normalize("NFD", text).lower()
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
    plain = re.sub("([日本])", r" \1 ", plain)
    return " ".join(re.findall(r"(?:[^\W_]|🙂)+|[^\w\s]|_", plain))


def test_every_kind_is_under_the_laws() -> None:
    assert set(CONFIGS) == set(kinds(TokenizerConfig)) - {"pretrained"}  # which is one of the others, from a file


@every_kind
@quick
@given(text=our_text)
def test_round_trip_over_known_characters(kind: str, text: str) -> None:
    law_round_trip(MADE[kind], text, normal(kind, text))


@pytest.mark.parametrize("kind", sorted(BYTE_LEVEL))
@quick
@given(text=any_text)
def test_byte_level_kinds_give_any_text_back(kind: str, text: str) -> None:
    law_round_trip(MADE[kind], text, text)


@every_kind
@quick
@given(text=any_text)
def test_decoded_text_is_its_own_normal_form(kind: str, text: str) -> None:
    once = MADE[kind].decode(MADE[kind].encode(text))
    if kind == "wordpiece":  # BERT's cleaning drops the mark of the unknown
        once = " ".join(once.replace("\ufffd", " ").split())
    law_round_trip(MADE[kind], once, once)


@every_kind
@quick
@given(text=any_text)
def test_ids_stay_below_vocab(kind: str, text: str) -> None:
    law_ids_below_vocab(MADE[kind], text)


SPELLINGS = ["<|end|>", "<|mask|>", " <|end|>", "<|end|><|end|>", "x<|end|>y", "<|END|>", "<|end|>\n", "<<|end|>>"]


@every_kind
@quick
@given(text=st.lists(st.sampled_from([*SPELLINGS, "<|", "|>", "end", "mask", " ", "a"]), max_size=8).map("".join))
def test_text_never_becomes_a_control_token(kind: str, text: str) -> None:
    tokenizer = MADE[kind]
    law_no_control_from_text(tokenizer, text, set(tokenizer.special.values()))


@pytest.mark.parametrize("config", [WordTokenizer(punctuation="attached"), BpeTokenizer(vocab=258, least=1)])
def test_a_corpus_full_of_control_names_teaches_none(config: TokenizerConfig) -> None:
    tokenizer = config.train(["<|end|> <|end|> " * 500])
    for text in SPELLINGS:
        law_no_control_from_text(tokenizer, text, {tokenizer.end})


@every_kind
@quick
@given(texts=st.lists(any_text, max_size=6))
def test_many_texts_equal_each_alone(kind: str, texts: list[str]) -> None:
    law_many_is_one(MADE[kind], texts)


@every_kind
def test_long_texts_are_equal_serial_and_parallel(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["".join(TRAINING) * 3, "a" * 30_000, " " * 30_000, "no spaces".replace(" ", "") * 4000, ""]
    alone = [MADE[kind].encode(text) for text in texts]
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    assert MADE[kind].encode_many(texts) == alone


@every_kind
def test_saved_and_loaded_are_equal(kind: str, tmp_path: Path) -> None:
    tokenizer = MADE[kind]
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.vocab, loaded.end, loaded.unknown) == (tokenizer.vocab, tokenizer.end, tokenizer.unknown)
    assert dict(loaded.special) == dict(tokenizer.special)
    for text in [*TRAINING, *SPELLINGS]:
        assert loaded.encode(text) == tokenizer.encode(text)


# --- the laws catch planted bugs --------------------------------------------------------------------------------------


class Planted:
    """A tokenizer with one bug."""

    def __init__(self, inner: Tokenizer, bug: str) -> None:
        self.inner, self.bug = inner, bug
        self.vocab = inner.vocab - (bug == "id too high")

    def encode(self, text: str) -> list[int]:
        if self.bug == "control":
            return [self.inner.end if w == "<|end|>" else self.inner.encode(w)[0] for w in text.split()]
        ids = self.inner.encode(text)
        return ids[:-1] if self.bug == "lost" else [self.vocab, *ids] if self.bug == "id too high" else ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids[::-1] if self.bug == "many" else ids for ids in map(self.encode, texts)]

    def decode(self, ids: Iterable[int]) -> str:
        return self.inner.decode(ids)


def test_planted_bugs_break_the_laws() -> None:
    inner = MADE["byte"]
    with pytest.raises(AssertionError):
        law_round_trip(Planted(inner, "lost"), "some text", "some text")
    with pytest.raises(AssertionError):
        law_ids_below_vocab(Planted(inner, "id too high"), "x")
    with pytest.raises(AssertionError):
        law_no_control_from_text(Planted(inner, "control"), "a <|end|> b", {inner.end})
    with pytest.raises(AssertionError):
        law_many_is_one(Planted(inner, "many"), ["ab", "cd"])
