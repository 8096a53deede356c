"""Long texts: a text split into chunks has the ids of the whole, or it is not split."""

from collections.abc import Callable
from typing import Any

import pytest
from text.formats.makers import FOLDERS, strings
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from heddle.text.tokenizers import split_into_chunks
from heddle.text.tokenizers.chunks import ChunkBoundaries, chunk_boundaries

Get = Callable[[str], Any]
NOWHERE = {"whole_prepended"}  # a mark would be put before each piece
PARTS = [
    "The cat's hat, 12,000 of them; Käse (naïve) don't stop! Привет мир. x = y_1;\t// no\r\nend.\n\nSo  it  goes ",
    "日本語の文。 e\u0301 \u0301 a \u0301 \u0600 b ﬁ ½ a\x01 b \x01 c \u200b d ",
    "I 've . no , 's `` '' a'' b 1 2  3   4\n 5 \n6 ",
]


def texts() -> list[str]:
    """Return texts of ordinary words and spaces among all else."""
    odd = strings(60, seed=3)
    mixed = [PARTS[i % 3] + text + " word " + PARTS[(i + 1) % 3] + text[::-1] for i, text in enumerate(odd)]
    return [*mixed, *(part * 3 for part in PARTS)]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_text_in_pieces_has_the_ids_of_the_whole(name: str, found: Get) -> None:
    pipeline = found(name)[0].pipeline
    boundaries = chunk_boundaries(pipeline)
    assert boundaries == ("nowhere" if name in NOWHERE else "spaces")
    count = 0
    for text in texts():
        parts = list(split_into_chunks(text, boundaries, longest=3))
        assert "".join(parts) == text
        count += len(parts)
        ids = [id for part in parts for id in pipeline.encode(part, add_special_tokens=False).ids]
        assert ids == pipeline.encode(text, add_special_tokens=False).ids, repr(text[:200])
    assert boundaries == "nowhere" or count > 1000


@pytest.mark.parametrize("name", FOLDERS)
def test_long_texts_have_their_ids_and_spans(name: str, theirs: Get, found: Get) -> None:
    read, tokenizer = found(name)
    long = ["".join(texts()) * 2, "a" * 20_000, " " * 20_000, "日本" * 9_000, "x \x01 " * 5_000, PARTS[1] * 300]
    expected = [theirs(name)(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] for text in long]
    assert [tokenizer.encode(text) for text in long] == expected
    assert tokenizer.encode_many(long) == expected
    for text in (long[0], long[-1]):
        assert tokenizer.spans(text) == read.pipeline.encode(text, add_special_tokens=False).offsets


def test_a_token_that_joins_words_forbids_cuts() -> None:
    for vocab, boundaries in (
        ({"\u2581": 0, "a": 1, "\u2581\u2581a": 2}, "spaces"),
        ({"\u2581": 0, "a\u2581b": 1}, "nowhere"),
    ):
        made = Tokenizer(models.BPE(vocab, []))
        made.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
        assert chunk_boundaries(made) == boundaries


def pipeline(words: Any = None, normal: Any = None, added: AddedToken | None = None) -> Tokenizer:
    made = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer, made.normalizer = words, normal
    if added is not None:
        made.add_tokens([added])
    return made


BERT, GPT2 = pre_tokenizers.BertPreTokenizer(), pre_tokenizers.ByteLevel()


@pytest.mark.parametrize(
    ("made", "boundaries"),
    [
        (pipeline(), "nowhere"),
        (pipeline(BERT), "spaces"),
        (pipeline(GPT2), "spaces"),
        (pipeline(pre_tokenizers.ByteLevel(use_regex=False)), "nowhere"),
        (pipeline(pre_tokenizers.Sequence([pre_tokenizers.Digits(), GPT2])), "spaces"),
        (pipeline(pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated")), "nowhere"),
        (pipeline(pre_tokenizers.Metaspace(split=True)), "spaces"),
        (pipeline(pre_tokenizers.Metaspace(split=False)), "nowhere"),
        (
            pipeline(
                pre_tokenizers.Sequence(
                    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]
                )
            ),
            "nowhere",
        ),
        (pipeline(GPT2, normalizers.NFC()), "spaces"),
        (pipeline(GPT2, normalizers.Prepend("x")), "nowhere"),
        (pipeline(GPT2, normalizers.Replace("a b", "c")), "nowhere"),
        (pipeline(GPT2, normalizers.Strip()), "nowhere"),
        (pipeline(GPT2, None, AddedToken("New York")), "nowhere"),
        (pipeline(GPT2, None, AddedToken("<x>", rstrip=True)), "nowhere"),
        (pipeline(GPT2, None, AddedToken("   ", normalized=False)), "spaces"),
    ],
)
def test_cuts_are_made_only_where_they_are_known_to_be_safe(made: Tokenizer, boundaries: ChunkBoundaries) -> None:
    assert chunk_boundaries(made) == boundaries


def test_pieces_are_of_about_the_wanted_length() -> None:
    text = "word " * 10_000
    parts = list(split_into_chunks(text, "spaces", longest=100))
    assert "".join(parts) == text
    assert {len(part) for part in parts[1:-1]} <= set(range(100, 106))
    assert list(split_into_chunks(text, "nowhere", longest=100)) == [text]
