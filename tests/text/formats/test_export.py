"""Exported tokenizers: transformers loads them without a warning, and they encode and decode as in Heddle."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from text.formats.conftest import ours
from text.formats.makers import FOLDERS, corpus, strings

from heddle.text.formats import read_tokenizer, write_tokenizer
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
    load_tokenizer,
)

Get = Callable[[str], Any]
KINDS: list[TokenizerConfig] = [
    ByteTokenizer(special=("<|mask|>",)),
    CharacterTokenizer(),
    WordTokenizer(lowercase=True),
    BpeTokenizer(vocab=500),
    WordPieceTokenizer(vocab=400),
    UnigramTokenizer(vocab=400),
]


def loaded(folder: Path, caplog: pytest.LogCaptureFixture, family: str = "llama") -> Any:
    """Return what transformers loads from a folder, asserting that it has nothing to say."""
    from transformers import AutoTokenizer
    from transformers.utils import logging as theirs

    (folder / "config.json").write_text(f'{{"model_type": "{family}"}}')
    theirs.enable_propagation()
    with caplog.at_level(logging.WARNING):
        made = AutoTokenizer.from_pretrained(folder)
        assert made.convert_ids_to_tokens(made.eos_token_id) == made.eos_token
    theirs.disable_propagation()
    assert caplog.records == []
    return made


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5", "openai-gpt", "switch_transformers"])
def test_heddle_tokenizers_load_in_transformers(
    kind: TokenizerConfig, family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = kind.train([corpus()])
    files = write_tokenizer(tokenizer, tmp_path, template="{{ 'x' }}", limit=100_000)
    assert [path.name for path in files] == ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    theirs = loaded(tmp_path, caplog, family)
    assert theirs.chat_template == "{{ 'x' }}" and theirs.model_max_length == 100_000
    assert theirs.bos_token_id == theirs.eos_token_id == tokenizer.end
    for text in strings(60, seed=6):
        ids = tokenizer.encode(text)
        assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)
        assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    found = read_tokenizer(tmp_path)
    assert found is not None and found.before == (tokenizer.end,) and found.limit == 100_000
    again = Tokenizer(found.pipeline, tokenizer.special_tokens)
    assert again.encode_many(strings(60)) == tokenizer.encode_many(strings(60))


@pytest.mark.parametrize("name", FOLDERS)
def test_those_of_others_go_on_as_they_came(
    name: str, found: Get, theirs: Get, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read, tokenizer = found(name)
    special_tokens = SpecialTokens(
        end=tokenizer.end, begin=tokenizer.end, text=SequenceTemplate(read.before, read.after)
    )
    write_tokenizer(Tokenizer(read.pipeline, special_tokens), tmp_path)
    made = loaded(tmp_path, caplog)
    for text in strings(60, seed=7):
        ids = theirs(name)(text, split_special_tokens=True)["input_ids"]
        assert made(text, split_special_tokens=True)["input_ids"] == ids
        assert made.decode(ids, skip_special_tokens=True) == theirs(name).decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["t5", "llama", "bert", "whole_llama3"])
def test_those_of_others_come_back_the_same(name: str, found: Get, tmp_path: Path) -> None:
    _, tokenizer = found(name)
    write_tokenizer(tokenizer, tmp_path)
    again = read_tokenizer(tmp_path)
    assert again is not None
    assert Tokenizer(again.pipeline, tokenizer.special_tokens).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("name", FOLDERS)
def test_those_of_others_are_saved_and_loaded_as_ours_are(name: str, found: Get, tmp_path: Path) -> None:
    _, tokenizer = found(name)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert (again.fingerprint, again.special_tokens) == (tokenizer.fingerprint, tokenizer.special_tokens)
    long = "".join(strings(200)) * 2
    assert again.encode(long) == tokenizer.encode(long)


def test_pairs_are_framed_and_masks_are_named(found: Get, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read, _ = found("bert")
    ids = {key: read.pipeline.get_vocab()[name] for key, name in read.named.items()}
    sequence = SequenceTemplate(read.before, read.after)
    special_tokens = SpecialTokens(
        ids["sep_token"], ids["cls_token"], sequence, sequence, mask=ids["mask_token"], pad=ids["pad_token"]
    )
    write_tokenizer(Tokenizer(read.pipeline, special_tokens), tmp_path)
    made = loaded(tmp_path, caplog, "bert")
    assert (made.cls_token, made.sep_token, made.mask_token, made.pad_token) == ("[CLS]", "[SEP]", "[MASK]", "[PAD]")
    cls, sep = ids["cls_token"], ids["sep_token"]
    a, b = (ours(read).encode(text) for text in ("the text", "of words"))
    pair = made("the text", "of words")["input_ids"]
    assert pair == [cls, *a, sep, *b, sep]


def test_an_encoder_decoder_s_source_can_be_framed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = ByteTokenizer().train([])
    write_tokenizer(tokenizer, tmp_path, sequence=tokenizer.special_tokens.source)
    assert loaded(tmp_path, caplog, "t5")("ab")["input_ids"] == tokenizer.source("ab")
