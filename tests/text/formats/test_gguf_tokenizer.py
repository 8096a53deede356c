"""GGUF tokenizers encode text as in transformers."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
from text.formats.conftest import ours
from text.formats.makers import strings
from tokenizers import pre_tokenizers

from heddle.core import DataError
from heddle.text.formats import ImportedTokenizer, read_gguf_tokenizer
from heddle.text.formats.gguf_tokenizer import IGNORES_MERGES, PRETOKENIZERS
from heddle.text.formats.sentencepiece import read_sentencepiece_model

Get = Callable[[str], Any]


def byte_level_pipeline(folder: Path, **more: Any) -> dict[str, Any]:
    """Return metadata with byte-level tokens."""
    vocab = json.loads((folder / "vocab.json").read_text())
    merges = (folder / "merges.txt").read_text().splitlines()[1:]
    kinds = [3 if token.startswith("<|") else 1 for token in vocab]
    keys = {"model": "gpt2", "pre": "smollm", "tokens": [*vocab], "token_type": kinds, "merges": merges}
    return {**keys, "bos_token_id": 0, "eos_token_id": 2, "padding_token_id": 2, "unknown_token_id": 0, **more}


def spieces(folder: Path, **more: Any) -> dict[str, Any]:
    """Return metadata with tokens like SentencePiece's."""
    found = read_sentencepiece_model(folder / "tokenizer.model")
    keys = {
        "model": "llama",
        "tokens": [piece.text for piece in found.pieces],
        "scores": [piece.score for piece in found.pieces],
        "token_type": [piece.kind for piece in found.pieces],
    }
    return {**keys, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True, **more}


def header(keys: Mapping[str, Any], template: str | None = None) -> dict[str, Any]:
    named = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return named | {"general.architecture": "llama", "tokenizer.chat_template": template}


def theirs(folder: Path, keys: Mapping[str, Any]) -> Any:
    """Write a file with such metadata; return what transformers reads from it."""
    from transformers import AutoTokenizer

    writer = gguf.GGUFWriter(str(folder / "model.gguf"), "llama")
    for add, value in (("block_count", 1), ("context_length", 64), ("embedding_length", 8), ("head_count", 2)):
        getattr(writer, f"add_{add}")(value)
    writer.add_feed_forward_length(8)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in keys.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        else:
            (writer.add_uint32 if isinstance(value, int) else writer.add_string)(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")


def hold(found: ImportedTokenizer, other: Any) -> None:
    tokenizer = ours(found)
    for text in strings(200, seed=4):
        ids = tokenizer.encode(text)
        assert ids == other(text, add_special_tokens=False, split_special_tokens=True)["input_ids"], repr(text[:200])
        assert tokenizer.decode(ids) == other.decode(ids, skip_special_tokens=True)
    rng = random.Random(0)
    for _ in range(100):
        ids = rng.choices(range(tokenizer.vocab), k=12)
        assert tokenizer.decode(ids) == other.decode(ids, skip_special_tokens=True)
    assert dict(found.named) == {k: v for k, v in other.special_tokens_map.items() if isinstance(v, str)}


@pytest.mark.parametrize("text", ["a  5", "in  1984,\n\n  12 times  3x", "5  5 ٣  ½\t\t7", "7'd 8 's  'll  9"])
def test_smollm_sets_digits_apart_before_all_else(text: str, folder: Get) -> None:
    keys = byte_level_pipeline(folder("qwen2"))
    found = ours(read_gguf_tokenizer(header(keys)))
    # llama.cpp cuts at every digit first, then what is between them as GPT-2 does; so does SmolLM2's tokenizer.json
    own = read_gguf_tokenizer(header({**keys, "pre": "gpt-2"})).pipeline
    own.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    ])  # fmt: skip
    assert found.encode(text) == own.encode(text, add_special_tokens=False).ids
    for more in strings(200, seed=6):
        spaced = f"{more}  {text}"
        assert found.encode(spaced) == own.encode(spaced, add_special_tokens=False).ids


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken"])
def test_byte_level_tokens_cut_as_transformers(pre: str, folder: Get, tmp_path: Path) -> None:
    keys = byte_level_pipeline(folder("qwen2"), pre=pre)
    found = read_gguf_tokenizer(header(keys, template="{{ x }}"))
    hold(found, theirs(tmp_path, keys))
    begins = (0,) if pre in IGNORES_MERGES else ()  # llama.cpp has it so where the file does not tell
    assert (found.before, found.after, found.template) == (begins, (), "{{ x }}")


def test_tokens_like_sentencepiece_s_cut_as_transformers(folder: Get, tmp_path: Path) -> None:
    keys = spieces(folder("llama"))
    found = read_gguf_tokenizer(header(keys))
    hold(found, theirs(tmp_path, keys))
    assert (found.before, found.after) == ((1,), ())


def test_flags_put_tokens_around_a_text(folder: Get) -> None:
    keys = byte_level_pipeline(folder("qwen2"), add_bos_token=True, add_eos_token=True)
    found = read_gguf_tokenizer(header(keys))
    assert (found.before, found.after) == ((0,), (2,))
    bare = read_gguf_tokenizer(header({**spieces(folder("llama")), "add_bos_token": False}))
    assert bare.before == ()


def test_llama_3_takes_a_token_whole_that_no_merges_lead_to(folder: Get) -> None:
    keys = byte_level_pipeline(folder("qwen2"), pre="llama-bpe")
    keys = {**keys, "tokens": [*keys["tokens"], "Ġxqzj"], "token_type": [*keys["token_type"], 1]}
    last = len(keys["tokens"]) - 1
    assert ours(read_gguf_tokenizer(header(keys))).encode("a xqzj")[-1] == last
    assert last not in ours(read_gguf_tokenizer(header({**keys, "pre": "smollm"}))).encode("a xqzj")
    assert read_gguf_tokenizer(header({**keys, "add_bos_token": False})).before == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "rwkv"}, "want one of gpt2, llama"),
        ({"model": None}, "want one of gpt2, llama"),
        ({"pre": "qwen3"}, "did you mean 'qwen2'"),
        ({"pre": 7}, "want one of"),
        ({"tokens": None}, "want a list of texts"),
        ({"tokens": ["a", 1]}, "want a list of texts"),
        ({"tokens": ["a", "a"]}, "want"),
        ({"merges": ["a"]}, "want two tokens"),
        ({"merges": ["zz qq"]}, "out of vocabulary"),
        ({"token_type": [1]}, "want one for each"),
        ({"eos_token_id": -1}, "want an id from 0"),
        ({"eos_token_id": 10**9}, "want an id from 0"),
        ({"bos_token_id": "x"}, "want an id from 0"),
        ({"add_bos_token": "yes"}, "want true or false"),
    ],
)
def test_wrong_headers_are_refused_in_a_line(change: dict[str, Any], words: str, folder: Get) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_gguf_tokenizer(header({**byte_level_pipeline(folder("qwen2")), **change}))
    assert "\n" not in str(caught.value)


def test_scores_are_needed_for_each_token(folder: Get) -> None:
    for scores in (None, [0.0]):
        with pytest.raises(DataError, match="scores"):
            read_gguf_tokenizer(header(spieces(folder("llama"), scores=scores)))


def test_every_pattern_is_one_that_the_library_takes(folder: Get) -> None:
    for pre in PRETOKENIZERS:
        assert ours(read_gguf_tokenizer(header(byte_level_pipeline(folder("qwen2"), pre=pre)))).encode("a b") != []
