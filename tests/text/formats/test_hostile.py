"""Hostile and damaged tokenizer files are refused in one line, quickly; nothing panics, nothing hangs."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from text.formats.conftest import ours
from text.formats.makers import FOLDERS

from heddle.core import HeddleError
from heddle.text.formats import read_tokenizer
from heddle.text.formats.sentencepiece import parse_sentencepiece
from heddle.text.tokenizers import load_tokenizer

Get = Callable[[str], Any]
LONGEST = 5.0  # seconds that a refusal may take


def refused(folder: Path, words: str = "") -> None:
    """Assert that a folder is refused in one line that has these words, and soon."""
    start = time.perf_counter()
    with pytest.raises(HeddleError, match=words) as caught:
        read_tokenizer(folder)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < LONGEST


def survives(folder: Path) -> bool:
    """Say whether a folder is read after all; then its tokenizer must work, or fail in one line."""
    start = time.perf_counter()
    try:
        found = read_tokenizer(folder)
        assert found is not None
        tokenizer = ours(found)
        tokenizer.decode(tokenizer.encode("The cat's hat — naïve 🙂 12"))
    except HeddleError as error:
        assert "\n" not in str(error)
        return False
    finally:
        assert time.perf_counter() - start < LONGEST
    return True


def write(folder: Path, **files: Any) -> Path:
    for name, data in files.items():
        path = folder / name.replace("_DOT_", ".")
        path.write_text(data if isinstance(data, str) else json.dumps(data))
    return folder


VOCAB = {"a": 0, "b": 1, "ab": 2}
MERGES = "#version: 0.2\na b\n"


@pytest.mark.parametrize(
    ("vocab", "merges", "words"),
    [
        ([], MERGES, "want an object"),
        ({}, MERGES, "want a vocabulary"),
        ("{", MERGES, "valid JSON"),
        ("[" * 100_000, MERGES, "valid JSON"),
        ({"a": -1}, "", "want an id"),
        ({"a": 1 << 40}, "", "want an id"),
        ({"a": 0.5}, "", "want an id"),
        ({"a": True}, "", "want an id"),
        ({"a": "0"}, "", "want an id"),
        ({"a": 0, "b": 0}, "", "each id once"),
        ('{"a": 0, "a": 1}', "", "each key once"),
        ('{"\\ud800": 0}', "", "surrogate"),
        (VOCAB, "a\n", "line 1: want two tokens"),
        (VOCAB, "a b\n\na b\n", "line 2: want two tokens"),
        (VOCAB, "a b c\n", "want two tokens"),
        (VOCAB, "a x\n", "out of vocabulary"),
        (VOCAB, "ab ab\n", "out of vocabulary"),
    ],
)
def test_wrong_vocabularies_and_merges_are_refused(vocab: Any, merges: str, words: str, tmp_path: Path) -> None:
    refused(write(tmp_path, vocab_DOT_json=vocab, merges_DOT_txt=merges), words)


def test_merges_in_a_circle_do_no_harm(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "aba": 3, "<|endoftext|>": 4}
    write(tmp_path, vocab_DOT_json=vocab, merges_DOT_txt="a b\nab a\na b\nab a\n")
    assert survives(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"), [("", "want from 1"), ("a\nb\n", "[UNK]"), ("\udcff", "UTF-8"), ("[UNK]\n" * 3, None)]
)
def test_wrong_lists_of_pieces_are_refused(text: str, words: str | None, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(text.encode(errors="surrogateescape"))
    if words is None:
        survives(tmp_path)
    else:
        refused(tmp_path, words.replace("[", r"\["))


def test_words_of_gpt_want_a_token_for_what_is_unknown(tmp_path: Path) -> None:
    kind = {"model_type": "openai-gpt"}
    write(tmp_path, vocab_DOT_json={"a</w>": 0, "b": 1}, merges_DOT_txt="", config_DOT_json=kind)
    refused(tmp_path, "vocab.json: want the token '<unk>'")
    write(tmp_path, vocab_DOT_json={"a</w>": 0, "<unk>": 1}, merges_DOT_txt="a b</w>\n", config_DOT_json=kind)
    refused(tmp_path, "out of vocabulary")


PAPERS: list[tuple[str, Any, str]] = [
    ("tokenizer_config.json", [], "want an object"),
    ("tokenizer_config.json", {"do_lower_case": "yes"}, "want true or false"),
    ("tokenizer_config.json", {"unk_token": 7}, "want a token's name"),
    ("tokenizer_config.json", {"unk_token": {"content": 7}}, "want a token's name"),
    ("tokenizer_config.json", {"unk_token": {"content": "[UNK]", "lstrip": 1}}, "want flags"),
    ("tokenizer_config.json", {"unk_token": "x" * 10_000}, "want a token's name"),
    ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "want an object of tokens"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "want an id"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"-1": {"content": "a"}}}, "want an id"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: {"content": "a"}}}, "want an id"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"77": {"content": "new"}}}, "want id 2"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"0": {}}}, "want a token's name"),
    ("tokenizer_config.json", {"additional_special_tokens": [7]}, "want a token's name"),
    ("special_tokens_map.json", 7, "want an object"),
    ("added_tokens.json", {"new": "x"}, "want an id"),
    ("added_tokens.json", {"new": 1 << 60}, "want an id"),
    ("config.json", [], "want an object"),
]


@pytest.mark.parametrize(("name", "data", "words"), PAPERS)
def test_wrong_papers_are_refused(name: str, data: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    (tmp_path / name).write_text(json.dumps(data))
    refused(tmp_path, words)


SPLIT = {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
MODEL = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
WHOLE: list[tuple[Any, str]] = [
    (7, "no model"),
    ({}, "no model"),
    ({"model": []}, "no model"),
    ({"model": {"type": "BPE"}}, "not a tokenizer"),
    ({"model": {"type": "None", "vocab": {}}}, "want a vocabulary"),
    ({"model": {**MODEL, "vocab": {}}}, "want a vocabulary"),
    ({"model": {**MODEL, "vocab": {"a": 0, "b": 0}}}, "each id once"),
    ({"model": {**MODEL, "vocab": {"a": -1}}}, "want an id"),
    ({"model": {**MODEL, "vocab": {"a": 1 << 31}}}, "want an id"),
    ({"model": {**MODEL, "merges": [["a", "x"]]}}, "out of vocabulary"),
    ({"model": {**MODEL, "merges": ["b b"]}}, "out of vocabulary"),
    ({"model": {**MODEL, "merges": [["a"]]}}, "not a tokenizer"),
    ({"model": MODEL, "version": "9"}, "not a tokenizer"),
    ({"model": MODEL, "added_tokens": [{"id": 0}]}, "not a tokenizer"),
    ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9}}, "not a tokenizer"),
    ({"model": {"type": "Unigram", "vocab": [], "unk_id": 0}}, "not a tokenizer"),
    ({"model": MODEL, "pre_tokenizer": SPLIT}, "not a tokenizer"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "words"), WHOLE)
def test_wrong_tokenizer_json_is_refused(data: Any, words: str, tmp_path: Path) -> None:
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    base |= {"pre_tokenizer": None, "post_processor": None, "decoder": None}
    whole = {**base, **data} if isinstance(data, dict) and data else data
    refused(write(tmp_path, tokenizer_DOT_json=whole), words)


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize("pattern", [{"String": "a"}, {"Regex": "a*"}])
def test_replacements_that_blow_a_text_up_are_refused_before_any_is_read(
    part: str, pattern: dict[str, str], tmp_path: Path
) -> None:
    data: dict[str, Any] = {"version": "1.0", "model": MODEL}
    step = {"type": "Replace", "pattern": pattern, "content": "a" * 40}
    data[part] = {"type": "Sequence", f"{part}s": [{"type": "Sequence", f"{part}s": [step, step]}, step]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    refused(tmp_path, f"its {part} makes texts more than 1000 times as long")
    with pytest.raises(HeddleError, match="times as long"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_ids_around_a_text_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    template = {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}]}
    template["single"] = [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template["special_tokens"] = {"x": {"id": "x", "ids": [1 << 30], "tokens": ["x"]}}
    refused(write(tmp_path, tokenizer_DOT_json={"version": "1.0", "model": MODEL, "post_processor": template}), "ids")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate((1 << 28) + 1)
    refused(tmp_path, "larger than")


# --- SentencePiece ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no pieces"),
        (b"\x0a", "ends within"),
        (b"\x0a\xff\xff\xff\xff\x0f", "ends within"),
        (b"\x0a\x7f\x0a", "ends within"),
        (b"\xff" * 40, "more than ten bytes"),
        (b"\x0b\x0c", "has an unknown encoding"),
        (b"\x0a\x03\x0a\x01\xff", "can't decode"),
        (b"\x0a\x02\x0a\x00", "characters"),
        (b"\x0a\x03\x0a\x01a" * 2, "the same"),
        (b"\x0a\x03\x0a\x01a", "one unknown piece"),
        (b"\x0a\x08\x0a\x01a\x15\x00\x00\x80\x7f", "finite score"),
        (b"\x0a\x05\x0a\x01a\x18\x09", "kind from 1 to 6"),
        (b"\x0a\x05\x0a\x01a\x18\x02\x12\x02\x18\x04", "unigram or BPE"),
        (b"not a model at all, but text", "ends within|encoding"),
    ],
)
def test_wrong_sentencepiece_models_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        parse_sentencepiece(data)
    (tmp_path / "spiece.model").write_bytes(data)
    refused(tmp_path, "not a SentencePiece model")


def test_long_pieces_do_not_take_long(tmp_path: Path) -> None:
    one = b"".join(b"\x0a\x83\x08\x0a\x80\x08" + f"{i:05d}".encode() + b"a" * 1019 for i in range(4000))
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x05\x0a\x01u\x18\x02" + one + b"\x12\x05\x18\x02\x98\x02\x01")
    refused(tmp_path, "too long to find their merges")


@pytest.mark.parametrize("name", ["t5", "llama", "albert"])
def test_damaged_sentencepiece_models_never_panic(name: str, folder: Get, tmp_path: Path) -> None:
    shutil.copytree(folder(name), tmp_path, dirs_exist_ok=True)
    path = next(tmp_path.glob("*.model"))
    whole, rng = path.read_bytes(), random.Random(0)
    read = 0
    for turn in range(60):
        data = bytearray(whole)
        if turn % 3 == 0:
            data = data[: rng.randrange(len(data))]
        else:
            for _ in range(1 if turn % 3 == 1 else 20):
                data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        read += survives(tmp_path)
    assert read < 60


@pytest.mark.parametrize("name", ["gpt2", "bert", "whole_llama3", "whole_gemma", "opt"])
def test_damaged_files_never_panic(name: str, folder: Get, tmp_path: Path) -> None:
    rng = random.Random(name)
    for turn in range(20):
        place = tmp_path / str(turn)
        shutil.copytree(folder(name), place)
        files = sorted(path for path in place.iterdir() if path.name != "config.json")
        path = rng.choice(files)
        data = bytearray(path.read_bytes())
        if turn % 2:
            data = data[: rng.randrange(len(data))]
        else:
            for _ in range(5):
                data[rng.randrange(len(data))] = rng.choice(b'0919{}[]",:x\n')
        path.write_bytes(data)
        survives(place)
        shutil.rmtree(place)


def test_every_good_folder_survives(folder: Get) -> None:
    assert all(survives(folder(name)) for name in FOLDERS)
