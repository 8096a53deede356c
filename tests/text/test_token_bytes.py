"""Token bytes: the bytes of ids, one after the other, are the text that they decode to."""

import random

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models

from heddle.core import UsageError
from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    token_bytes_of,
)

TEXT = "The cat sat on the mat.\nIt wasn't the cat's mat, naïve cafés: 12 € — 日本語!\n\nUnbelievable, unbelieved.\n"
KINDS: list[TokenizerConfig] = [
    ByteTokenizer(special=("<|mask|>",)),
    CharacterTokenizer(),
    WordTokenizer(),
    WordTokenizer(punctuation="attached", lowercase=True),
    BpeTokenizer(),
    WordPieceTokenizer(vocab=77),
    UnigramTokenizer(vocab=261),
]


def spelt(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return the text of ids by their bytes alone."""
    spelling = token_bytes_of(tokenizer)
    fresh, text = True, b""
    for i in ids:
        text += (spelling.first if fresh else spelling.inside)[i]
        fresh = i in spelling.fresh or (fresh and i in spelling.silent)
    return text.decode("utf-8", errors="replace")


def holds_for_random_ids(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    texts = tokenizer.encode(TEXT)
    for length in range(60):
        source = texts if length % 2 else range(tokenizer.vocab)
        ids = [rng.choice(source) for _ in range(length)]
        assert spelt(tokenizer, ids) == tokenizer.decode(ids)
    assert spelt(tokenizer, texts) == tokenizer.decode(texts)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.kind)
def test_bytes_of_ids_are_their_text(kind: TokenizerConfig) -> None:
    holds_for_random_ids(kind.train([TEXT]))


def imported(names: list[str], decoder: tokenizers.decoders.Decoder | None) -> Tokenizer:
    pipeline = tokenizers.Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="?"))
    if decoder is not None:
        pipeline.decoder = decoder
    pipeline.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return Tokenizer(pipeline)


NAMES = [
    "?",
    "\u2581the",
    "\u2581",
    "cat",
    "\u2581\u2581s",
    *("<0xE2>", "<0x82>", "<0xAC>"),
    "<0x20>",
    "<0xZZ>",
    "##s",
    "s</w>",
]
LLAMA = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence(LLAMA),
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.WordPiece(cleanup=False),
        decoders.WordPiece(cleanup=True),
        decoders.ByteLevel(),
        decoders.BPEDecoder(),
    ],
    ids=["llama", "metaspace", "metaspace-never", "wordpiece", "bert", "bytes", "suffixes"],
)
def test_imported_joins_are_followed(decoder: tokenizers.decoders.Decoder) -> None:
    tokenizer = imported(NAMES, decoder)
    rng = random.Random(1)
    chosen = [i for i in range(tokenizer.vocab) if i not in (6, 7)]
    for length in range(40):
        ids = [rng.choice(chosen) for _ in range(length)]
        each = [i for one in ids for i in ([5, 6, 7] if one == 5 else [one])]  # a whole character, byte by byte
        assert spelt(tokenizer, each) == tokenizer.decode(each)


@pytest.mark.parametrize("decoder", [None, decoders.CTC()], ids=["none", "ctc"])
def test_joins_without_bytes_of_their_own_are_refused(decoder: tokenizers.decoders.Decoder | None) -> None:
    with pytest.raises(UsageError, match="tokens have known bytes"):
        token_bytes_of(imported(NAMES, decoder))
