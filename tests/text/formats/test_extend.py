"""Vocabulary extension and transfer: old ids stay, new tokens are learnt from the text, each from its old pieces."""

import itertools
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from text.formats.conftest import ours
from text.formats.makers import FOLDERS

from heddle.core import ConfigError
from heddle.text.formats import read_tokenizer
from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    extend_tokenizer,
    load_tokenizer,
    old_pieces,
)

PLAIN = "the old man sat by the sea and said that this was the end of the story, no more no less. "
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("enzyme", "protein", "kinase", "phosphorylation", "genomic", "binding")
NATIVE: dict[str, TokenizerConfig] = {
    "bpe": BpeTokenizer(vocab=300, special=("<|mask|>",)),
    "wordpiece": WordPieceTokenizer(vocab=90, special=("<|mask|>",)),
    "unigram": UnigramTokenizer(vocab=270, special=("<|mask|>",)),
    "word": WordTokenizer(special=("<|mask|>",)),
}


def domain(lines: int = 200) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices((*WORDS, "the", "and", "of"), k=9)) + "." for _ in range(lines)]


def native(name: str) -> Tokenizer:
    return NATIVE[name].train([PLAIN * 30, f"{LETTERS} {LETTERS[::-1]} {' '.join(LETTERS)}"])


@pytest.mark.parametrize("name", NATIVE)
def test_old_ids_stay_and_the_words_of_the_domain_become_tokens(name: str, tmp_path: Path) -> None:
    given = native(name)
    count = 6 if name == "word" else 30
    made = extend_tokenizer(given, domain(), count)
    assert made.vocab == given.vocab + count and made.names()[: given.vocab] == given.names()
    assert made.special == given.special and made.special_tokens == given.special_tokens
    before, after = (sum(len(t.encode(text)) for text in domain()) for t in (given, made))
    assert after == before if name == "word" else after < 0.6 * before
    for text in (*domain(20), "<|end|> a <|mask|> b"):
        assert not set(made.encode(text)) & set(made.special.values()), "text never becomes a control token"
        if name in ("bpe", "unigram"):
            assert made.decode(made.encode(text)) == text
    assert name != "word" or made.unknown not in made.encode(domain()[0][:-1])
    again = extend_tokenizer(given, domain(), count)
    assert again.fingerprint == made.fingerprint != given.fingerprint
    made.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json").fingerprint == made.fingerprint


def test_merges_are_those_of_byte_pair_encoding_written_out() -> None:
    given = native("bpe")
    words = Counter(word for text in domain() for word in re.findall(r" ?[a-z]+|\.", text))
    pieces = {word: [given.names()[id] for id in given.encode(word)] for word in words}
    known, found = set(given.names()), []
    while len(found) < 30:
        counts = Counter(
            pair for word in words for pair in itertools.pairwise(pieces[word]) for _ in range(words[word])
        )
        counts = Counter({pair: count for pair, count in counts.items() if "".join(pair) not in known})
        first = min(counts, key=lambda pair: (-counts[pair], pair))
        found.append("".join(first))
        known.add(found[-1])
        for word in words:
            text = "\0".join(["", *pieces[word], ""])  # no piece of these words has a byte 0
            pieces[word] = text.replace("\0".join(["", *first, ""]), f"\0{found[-1]}\0").strip("\0").split("\0")
    assert extend_tokenizer(given, domain(), 30).names()[given.vocab :] == found


FREE = ("bert", "bert_cased", "gpt2", "roberta", "neox", "albert", "t5", "llama", "whole_llama3", "xlm_roberta")


@pytest.mark.parametrize("name", FREE)
def test_imported_tokenizers_are_extended_and_keep_their_ids(name: str, tmp_path: Path) -> None:
    given = ours(read_tokenizer(FOLDERS[name](tmp_path)))
    made = extend_tokenizer(given, domain(), 20)
    assert made.names()[: given.vocab] == given.names() and made.vocab == given.vocab + 20
    before, after = (sum(len(t.encode(text)) for text in domain()) for t in (given, made))
    assert after < 0.8 * before
    for text in domain(5):
        assert made.decode(made.encode(text)) == given.decode(given.encode(text))
    for id, pieces in enumerate(old_pieces(given, made)):
        if id < given.vocab:
            assert pieces == (id,) or given.names()[id] is None
        else:
            assert len(pieces) > 1, made.token(id)


@pytest.mark.parametrize("name", [name for name in NATIVE if name != "word"])
def test_a_new_token_stands_for_the_pieces_that_it_had(name: str) -> None:
    given = native(name)
    made = extend_tokenizer(given, domain(), 30)
    pieces = old_pieces(given, made)
    assert pieces[: given.vocab] == [(id,) for id in range(given.vocab)]
    for id in range(given.vocab, made.vocab):
        text = made.token(id)
        if name == "bpe":
            assert pieces[id] == tuple(given.encode(text)), text
        joined = "".join(given.token(piece).removeprefix("##") for piece in pieces[id])
        assert joined == text.removeprefix("##") and len(pieces[id]) > 1


def test_tokens_of_another_kind_of_tokenizer_are_found_by_what_they_add_to_a_text() -> None:
    old, new = native("wordpiece"), BpeTokenizer(vocab=300, special=("<|mask|>",)).train([PLAIN * 30])
    pieces = old_pieces(old, new)
    names = {name: id for id, name in enumerate(new.names()) if name is not None}
    known = {name: id for id, name in enumerate(old.names()) if name is not None}
    assert pieces[names["Ġthe"]] == (known["the"],), "a word with the space before it"
    assert pieces[names["<|end|>"]] == (old.end,) and pieces[names["<|mask|>"]] == (old.special["<|mask|>"],)
    assert pieces[names["Ā"]] == (), "a byte that the old vocabulary has nothing of"
    assert sum(len(one) == 1 for one in pieces) > 30


def test_special_tokens_are_found_by_their_purpose(tmp_path: Path) -> None:
    old, new = ours(read_tokenizer(FOLDERS["bert"](tmp_path))), native("bpe")
    assert old_pieces(old, new)[new.end] == (old.end,)


def test_what_cannot_be_extended_is_refused_in_one_line() -> None:
    texts = [PLAIN * 5]
    single = r"want replaced, because the tokenizer .* has single bytes or characters"
    for config in (ByteTokenizer(), CharacterTokenizer()):
        with pytest.raises(ConfigError, match=single):
            extend_tokenizer(config.train(texts), domain(), 3)
    with pytest.raises(ConfigError, match=r"tokens: want at most \d+, all that this text allows, got 5000"):
        extend_tokenizer(native("bpe"), domain(), 5000)
    two = Tokenizer(native("bpe")._pipeline, native("bpe").special_tokens, native("bpe")._pipeline)
    with pytest.raises(ConfigError, match="has another for target texts"):
        extend_tokenizer(two, domain(), 3)
    with pytest.raises(ConfigError, match="at most 0"):
        extend_tokenizer(native("bpe"), ["ab ab"], 3, least=9)
