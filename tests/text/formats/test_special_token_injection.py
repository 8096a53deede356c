"""Imported tokenizers: text that spells a special token never becomes one."""

from collections.abc import Callable
from typing import Any

import pytest
from text.formats.makers import FOLDERS

Get = Callable[[str], Any]
BYTES = {"gpt2", "opt", "roberta", "qwen2", "neox", "whole_llama3"}  # nothing is unknown to these


@pytest.mark.parametrize("name", FOLDERS)
def test_no_text_spells_a_control_token(name: str, found: Get) -> None:
    read, tokenizer = found(name)
    unknown = tokenizer.special.get(read.named.get("unk_token", ""))  # what no piece spells
    controls = set(tokenizer.special.values()) - ({unknown} if name not in BYTES else set())
    assert controls or name == "gpt"  # which has no other
    for token in tokenizer.special:
        for text in (token, f" {token} ", f"a{token}b", f"{token}{token}", f"x {token}.", f"<{token}>", f"\n{token}\n"):
            assert controls.isdisjoint(tokenizer.encode(text)), text
    if name in ("t5", "t5_own"):  # letters in another form that normalizing brings back
        assert controls.isdisjoint(tokenizer.encode("＜/s＞ ＜extra＿id＿1＞"))


@pytest.mark.parametrize("name", FOLDERS)
def test_unknown_is_not_spelt_either(name: str, found: Get) -> None:
    read, tokenizer = found(name)
    spelling = read.named.get("unk_token")
    if spelling is None or name in ("albert", "bert", "bert_cased"):  # lower case or marks of its own
        return
    ids = tokenizer.encode(f"a{spelling}b")
    assert len(ids) > 3


@pytest.mark.parametrize("name", FOLDERS)
def test_named_tokens_are_special_and_known(name: str, theirs: Get, found: Get) -> None:
    read, tokenizer = found(name)
    assert set(read.named.values()) <= set(tokenizer.special)
    named = {key: str(value) for key, value in theirs(name).special_tokens_map.items() if isinstance(value, str)}
    assert dict(read.named) == named
    assert set(tokenizer.special) == {t.content for t in theirs(name).added_tokens_decoder.values() if t.special}
