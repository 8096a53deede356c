"""Tokenizer folders of every format, each made once per session, with transformers' tokenizer for it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from text.formats.makers import FOLDERS

from heddle.text.formats import ImportedTokenizer, read_tokenizer
from heddle.text.tokenizers import SpecialTokens, Tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes a folder by its name, once."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = FOLDERS[name](tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture(scope="session")
def theirs(folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """Return transformers' tokenizer of a folder by its name."""
    from transformers import AutoTokenizer

    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            made[name] = AutoTokenizer.from_pretrained(folder(name))
        return made[name]

    return get


def ours(found: ImportedTokenizer) -> Tokenizer:
    """Return our tokenizer of what was found; it ends texts with the token that theirs names, or the last id."""
    named = found.named.get("eos_token", found.named.get("sep_token"))
    last = found.pipeline.get_vocab_size() - 1
    end = last if named is None else found.pipeline.get_vocab()[named]
    return Tokenizer(found.pipeline, SpecialTokens(end=end, begin=end))


@pytest.fixture(scope="session")
def found(folder: Callable[[str], Path]) -> Callable[[str], tuple[ImportedTokenizer, Tokenizer]]:
    """Return what was found in a folder by its name, and our tokenizer of it."""
    made: dict[str, tuple[ImportedTokenizer, Tokenizer]] = {}

    def get(name: str) -> tuple[ImportedTokenizer, Tokenizer]:
        if name not in made:
            read = read_tokenizer(folder(name))
            assert read is not None
            made[name] = read, ours(read)
        return made[name]

    return get
