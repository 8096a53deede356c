"""Decoding: streamed text and token bytes are the text that ids decode to, in every format."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from text.formats.makers import FOLDERS, corpus, strings

from heddle.core import UsageError
from heddle.text.tokenizers import TextStream, Tokenizer, token_bytes_of

Get = Callable[[str], Any]
CLEANED = {"bert_cased", "t5"}  # what one token adds there depends on those after it


def rows(tokenizer: Tokenizer) -> list[list[int]]:
    """Return ids of texts, random ids, and ids of bytes in whole characters and broken ones."""
    rng = random.Random(0)
    texts = [*strings(60, seed=5), corpus()[:600], "I don't . 's , ' x ' naïve 🙂🙂 日本 end ."]
    drawn = [rng.choices(range(tokenizer.vocab), k=rng.randrange(1, 90)) for _ in range(60)]
    found = {tokenizer.token(id): id for id in range(tokenizer.vocab)}
    if "<0xE2>" in found:
        for text in ("🙂é", "é", "ab"):
            run = [found[f"<0x{byte:02X}>"] for byte in text.encode()]
            drawn += [run, run + run[:2], run[1:] + tokenizer.encode(" a"), run * 20 + tokenizer.encode("b") + run[:-1]]
    return [*map(tokenizer.encode, texts), *drawn]


@pytest.mark.parametrize("name", FOLDERS)
def test_streamed_pieces_are_the_text(name: str, found: Get) -> None:
    _, tokenizer = found(name)
    for ids in rows(tokenizer):
        stream = TextStream(tokenizer)
        assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids), ids


@pytest.mark.parametrize("name", FOLDERS)
def test_streams_go_on_from_what_came_before(name: str, found: Get) -> None:
    _, tokenizer = found(name)
    ids = tokenizer.encode("The cat's hat — naïve; 12 of them. 🙂 end " * 3)
    whole = tokenizer.decode(ids)
    for cut in range(1, len(ids), 7):
        before = tokenizer.decode(ids[:cut])
        if not whole.startswith(before):  # a prompt is whole text
            continue
        stream = TextStream(tokenizer, ids[:cut])
        assert before + "".join([*map(stream.push, ids[cut:]), stream.flush()]) == whole


@pytest.mark.parametrize("name", FOLDERS)
def test_bytes_of_ids_are_their_text(name: str, found: Get) -> None:
    _, tokenizer = found(name)
    if name in CLEANED:
        with pytest.raises(UsageError, match="tokens have known bytes"):
            token_bytes_of(tokenizer)
        return
    spelling = token_bytes_of(tokenizer)
    for ids in rows(tokenizer):
        fresh, text = True, b""
        for i in ids:
            text += (spelling.first if fresh else spelling.inside)[i]
            fresh = i in spelling.fresh or (fresh and i in spelling.silent)
        expected = tokenizer.decode(ids)
        if "\ufffd" not in expected:  # broken bytes have no text
            assert text.decode() == expected, ids


@pytest.mark.parametrize("name", ["llama", "t5_own", "albert", "whole_gemma"])
def test_marked_tokens_show_their_space(name: str, found: Get) -> None:
    _, tokenizer = found(name)
    shown = {tokenizer.token(id) for id in tokenizer.encode("of the text and the words")}
    assert any(token[:1] == " " for token in shown)
    assert not any("\u2581" in token for token in shown)
