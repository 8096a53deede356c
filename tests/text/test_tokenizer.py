"""Tokenizer: what it shows, saves and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heddle.core import ConfigError, DataError, HeddleError, UsageError, decode, encode
from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    SequenceTemplate,
    SpecialTokens,
    Tokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    catch_panics,
    load_tokenizer,
    split_into_chunks,
)
from heddle.text.tokenizers.tokenizer import Pipeline

STORY = ["the cat sat on the mat and the dog sat on the log\n" * 30]


def test_a_byte_is_its_own_id() -> None:
    tokenizer = ByteTokenizer().train([])
    assert tokenizer.encode("Aé\0") == list("Aé\0".encode())
    assert (tokenizer.vocab, tokenizer.end, tokenizer.unknown) == (257, 256, None)


def test_bytes_are_what_the_library_would_say() -> None:
    tokenizer = ByteTokenizer(special=("<|mask|>",)).train([])
    for text in ("", " a\n\0é日🙂", "<|end|><|mask|>", bytes(range(256)).decode("latin-1")):
        assert tokenizer.encode(text) == tokenizer._pipeline.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_many([text]) == [tokenizer.encode(text)]


def test_characters_are_numbered_by_code_point_after_unknown() -> None:
    tokenizer = CharacterTokenizer().train(["banana\n"])
    assert [tokenizer.token(i) for i in range(tokenizer.vocab)] == ["\ufffd", "\n", "a", "b", "n", "<|end|>"]
    assert tokenizer.encode("nab!") == [4, 2, 3, tokenizer.unknown]


def test_the_most_frequent_characters_and_words_are_kept() -> None:
    few = CharacterTokenizer(vocab=4).train(["aaabbc"])
    assert few.decode(few.encode("abc")) == "ab\ufffd"
    words = WordTokenizer(vocab=5).train(STORY)
    assert words.decode(words.encode("the cat sat")) == "the \ufffd sat"
    often = WordTokenizer(least=31).train(STORY)
    assert often.decode(often.encode("the cat sat on")) == "the \ufffd sat on"


@pytest.mark.parametrize("text", ["a a a b b c \ufffd", "a a a \ufffd \ufffd b b c"])
@pytest.mark.parametrize("vocab", [None, 4, 5])
@pytest.mark.parametrize("punctuation", ["apart", "attached"])
def test_a_replacement_character_in_the_text_is_unknown_and_shares_no_id(text: str, vocab: int, punctuation) -> None:
    words = WordTokenizer(vocab=vocab, punctuation=punctuation).train([text])
    assert (words.vocab, words.end, words.unknown) == (vocab or 5, (vocab or 5) - 1, 0)
    assert sorted(filter(None, words.names())) == sorted({words.token(id) for id in range(words.vocab)})
    assert words.end not in words.encode(f"{text} elsewhere")
    assert words.encode("a \ufffd elsewhere") == [1, 0, 0]


def test_a_tokenizer_whose_text_becomes_a_special_token_is_refused(tmp_path: Path) -> None:
    plain = WordTokenizer().train(["a b c"]).to_json()
    plain["model"]["vocab"] = {"a": 1, "b": 2, "c": 3, "\ufffd": 4}  # as once written, from text with U+FFFD
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    with pytest.raises(UsageError, match=r"<\|end\|> and '\ufffd' share the id 4"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_words_may_keep_their_punctuation() -> None:
    text = "N <unk> it 's 3.5\n"
    apart, attached = (WordTokenizer(punctuation=p).train([text]) for p in ("apart", "attached"))
    assert attached.decode(attached.encode(text)) == text
    assert apart.decode(apart.encode(text)) == "N < unk > it ' s 3 . 5\n"
    assert len(attached.encode("a <unk>")) == 2


def test_lowercase_folds_case() -> None:
    for config in (
        CharacterTokenizer(lowercase=True),
        WordTokenizer(lowercase=True),
        WordPieceTokenizer(vocab=34),
        BpeTokenizer(lowercase=True),
    ):
        tokenizer = config.train(STORY)
        assert tokenizer.encode("THE") == tokenizer.encode("the")


def test_a_token_shows_its_text_and_stray_bytes() -> None:
    tokenizer = BpeTokenizer(vocab=270).train(STORY)
    shown = [tokenizer.token(i) for i in tokenizer.encode("the é")]
    assert "".join(shown) == "the \\xc3\\xa9"
    assert tokenizer.token(tokenizer.end) == "<|end|>"


def test_decoding_leaves_out_control_tokens_unless_requested() -> None:
    tokenizer = BpeTokenizer(vocab=270).train(STORY)
    ids = [tokenizer.end, *tokenizer.encode("the cat"), tokenizer.end]
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.decode(ids, special=True) == "<|end|>the cat<|end|>"
    assert tokenizer.decode(np.array(ids, np.uint16)) == "the cat"


def test_vocab_counts_extra_control_tokens() -> None:
    tokenizer = BpeTokenizer(vocab=270, special=("<|mask|>", "<|sep|>")).train(STORY)
    assert tokenizer.vocab == 270
    assert dict(tokenizer.special) == {"<|end|>": 267, "<|mask|>": 268, "<|sep|>": 269}


def test_ids_by_frequency_begin_with_the_most_frequent_and_end_with_special_tokens() -> None:
    text = STORY[0] + "the zebra é\n" * 3
    special = {"vocab": 280, "special": ("<|extra_1|>", "<|extra_0|>")}
    merges, ordered = (BpeTokenizer(order=order, **special).train([text]) for order in ("merges", "frequency"))
    before, after = merges.encode(text), ordered.encode(text)
    assert [merges.token(id) for id in before] == [ordered.token(id) for id in after], "the same tokens"
    counts = np.bincount(after, minlength=280)
    assert (np.diff(counts) <= 0).all() and not (np.diff(np.bincount(before, minlength=280)) <= 0).all()
    assert dict(ordered.special) == {"<|end|>": 277, "<|extra_1|>": 278, "<|extra_0|>": 279}, "sentinels are last"
    assert ordered.decode(after) == text and ordered.decode(ordered.encode("Ünseen\t")) == "Ünseen\t"


def test_unigram_ids_go_by_frequency_as_they_are() -> None:
    names = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau"
    text = "".join(f"{name} " * (400 // (rank + 1)) for rank, name in enumerate(names.split(" ")))
    tokenizer = UnigramTokenizer(vocab=262).train([text])
    counts = np.bincount(tokenizer.encode(text), minlength=262)
    first, sorted_first = counts[:8].sum(), np.sort(counts)[::-1][:8].sum()
    assert first > 0.85 * sorted_first, "nearly: ids go by estimated probability"


def test_arrays_equal_lists() -> None:
    tokenizer = BpeTokenizer(vocab=270).train(STORY)
    texts = ["the cat", "", "x" * 20_000]
    arrays = tokenizer.encode_arrays(texts)
    assert [a.tolist() for a in arrays] == tokenizer.encode_many(texts)
    assert all(a.dtype == np.uint32 for a in arrays)


CONFIGS = [
    WordTokenizer(vocab=500),
    CharacterTokenizer(vocab=500),
    BpeTokenizer(vocab=4096),
    WordPieceTokenizer(vocab=4096),
    UnigramTokenizer(vocab=4096),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
def test_a_vocabulary_beyond_the_text_is_refused_with_the_largest_possible(config: TokenizerConfig) -> None:
    with pytest.raises(ConfigError, match=r"^vocab: want at most \d+, all that this text allows, got \d+$") as caught:
        config.train(STORY)
    most = int(caught.value.want.split()[2].rstrip(","))
    plain = encode(config) | {"vocab": most}
    assert decode(TokenizerConfig, plain).train(STORY).vocab == most


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
def test_a_vocabulary_too_small_is_refused(config: TokenizerConfig) -> None:
    with pytest.raises(ConfigError, match=r"^vocab: want at least"):
        decode(TokenizerConfig, encode(config) | {"vocab": 2}).train(STORY)


def test_an_empty_text_is_no_ids_and_no_texts_are_no_rows() -> None:
    for config in (ByteTokenizer(), CharacterTokenizer(), WordTokenizer()):
        tokenizer = config.train(STORY)
        assert tokenizer.encode("") == []
        assert tokenizer.encode_many([]) == []
        assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_no_text_is_refused_by_kinds_that_learn(config: TokenizerConfig, texts: list[str]) -> None:
    with pytest.raises(DataError, match=r"^tokenizer: want text to learn from, got none$"):
        config.train(texts)


@pytest.mark.parametrize("name", ["mask", "<|end|>", "<||>", "<|_|>", "[MASK]", "<|Mask|>"])
def test_control_names_that_text_could_spell_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="special"):
        ByteTokenizer(special=(name,))


def test_a_control_name_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="each name once"):
        ByteTokenizer(special=("<|mask|>", "<|mask|>"))


def test_lone_surrogates_are_refused_by_place() -> None:
    tokenizer = BpeTokenizer(vocab=270).train(STORY)
    for text in ("ab\ud800", "\udfff"):
        with pytest.raises(DataError, match="lone surrogate"):
            tokenizer.encode(text)
        with pytest.raises(DataError, match="lone surrogate"):
            tokenizer.encode_many(["fine", text])
        with pytest.raises(DataError, match="lone surrogate"):
            CharacterTokenizer().train(["fine", text])


def test_ids_outside_the_vocabulary_are_refused() -> None:
    tokenizer = ByteTokenizer().train([])
    for wrong in (-1, 257, 1 << 40):
        with pytest.raises(UsageError, match="want 0 to 256"):
            tokenizer.decode([wrong])
        with pytest.raises(UsageError, match="want 0 to 256"):
            tokenizer.token(wrong)


def test_a_panic_of_the_library_becomes_one_line() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(DataError, match=r"the library failed: index out of bounds$"), catch_panics([]):
        raise panic("index out of bounds\nat line 3")
    with pytest.raises(KeyboardInterrupt), catch_panics([]):
        raise KeyboardInterrupt


WRONG = {
    "empty": "",
    "not json": "{",
    "a list": "[]",
    "no model": "{}",
    "deep": "[" * 100_000,
    "wrong model": '{"model": {}}',
    "another version": '{"version": "9", "model": {"type": "BPE", "vocab": {}, "merges": []}}',
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(WRONG[name])
    with pytest.raises(HeddleError) as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_tokenizer_without_its_end_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    ByteTokenizer(special=("<|mask|>",)).train([]).save(path)
    path.write_text(path.read_text().replace("<|end|>", "<|ends|>"))
    with pytest.raises(UsageError, match=r"want a special token '<\|end\|>', got .*; did you mean '<\|ends\|>'\?$"):
        load_tokenizer(path)


def test_roles_that_are_not_ours_are_saved_beside_the_tokenizer(tmp_path: Path) -> None:
    plain = ByteTokenizer(special=("<|mask|>", "<|open|>")).train([])
    plain.save(tmp_path / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    opened = plain.special["<|open|>"]
    frame = SequenceTemplate((opened,), (plain.end,))
    special_tokens = SpecialTokens(
        end=plain.end, begin=opened, text=frame, source=frame, target=(opened, 7), stops=(3,), never=(5,)
    )
    other = Tokenizer(Pipeline.from_file(str(tmp_path / "tokenizer.json")), special_tokens)
    other.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert again.special_tokens == special_tokens
    assert (again.encode_prompt("a"), again.encode_with_special_tokens("a"), again.source("a")) == (
        [opened, 97], [opened, 97, plain.end], [opened, 97, plain.end]
    )  # fmt: skip
    assert (special_tokens.ends, special_tokens.decoder_start, special_tokens.document_start) == (
        (plain.end, 3),
        (opened, 7),
        (opened,),
    )


@pytest.mark.parametrize(
    "told", [7, {}, {"end": 1}, {"end": True, "begin": 1}, {"end": 1, "begin": 999}, {"end": 1, "begin": 1, "x": 2},
             {"end": 1, "begin": 1, "stops": [-1]}, {"end": 1, "begin": 1, "text": []}]
)  # fmt: skip
def test_wrong_special_tokens_are_refused_in_a_line(tmp_path: Path, told: object) -> None:
    ByteTokenizer().train([]).save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"heddle_roles": told}))
    with pytest.raises(UsageError) as caught:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_the_file_is_the_librarys_own_format(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = BpeTokenizer(vocab=270).train(STORY)
    made.save(tmp_path / "tokenizer.json")
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "BPE"
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert other.encode("the cat", add_special_tokens=False).ids == made.encode("the cat")


SCRIPT = """
from heddle.text.tokenizers import *
text = [f"box {i} of liquor jugs; the {i * 7 % 13} boxing wizards jump quickly {i * i}" for i in range(300)]
for config in (WordTokenizer(), BpeTokenizer(vocab=300), WordPieceTokenizer(vocab=90), UnigramTokenizer(vocab=280)):
    print(config.train(text).fingerprint)
"""


def test_the_same_texts_give_the_same_tokenizer_in_every_process() -> None:
    runs = {
        subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 1


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_pieces_join_to_the_text_and_are_bounded() -> None:
    for text in ("", "a", "word " * 10_000, "x" * 20_000, "\n" * 20_000, "ab\n\n  cd" * 5000, " " * 8192):
        found = list(split_into_chunks(text))
        assert "".join(found) == text
        assert all(0 < len(chunk) <= 8192 for chunk in found)


def test_pieces_are_cut_where_no_token_crosses() -> None:
    text = "".join(f"def name{i}(x):\n    return x  # comment {i * 7}\n\n" for i in range(2000))
    for kind in (BpeTokenizer(vocab=300), UnigramTokenizer(vocab=280), WordTokenizer(), WordPieceTokenizer(vocab=80)):
        tokenizer = kind.train([text])
        whole = tokenizer._pipeline.encode(text, add_special_tokens=False).ids
        assert len(list(split_into_chunks(text))) > 1
        assert tokenizer.encode(text) == whole
