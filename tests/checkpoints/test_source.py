"""Sources: what is found at a path, its special tokens, and errors of one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from reliability.foreign import folder, gguf, llama_keys, llama_tensors

import heddle
from heddle.checkpoints import find_source
from heddle.checkpoints.hf import infer_special_tokens
from heddle.core import ConfigError, DamageError, UsageError
from heddle.text.formats import read_tokenizer
from heddle.text.tokenizers import BpeTokenizer, SequenceTemplate


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of tokenizer files: `</s>` ends a text, and `<s>` stands before it."""
    path = tmp_path_factory.mktemp("words")
    data = BpeTokenizer(vocab=262, special=("<|begin|>",)).train(["the cat sat on the mat " * 20]).to_json()
    begin = {"<|begin|>": {"id": "<|begin|>", "ids": [261], "tokens": ["<|begin|>"]}}
    single = [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    data["post_processor"] = {
        "type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": begin
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(data))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "bos_token": "<|begin|>"}))
    return path


@pytest.mark.parametrize("config", [{}, {"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": -1}])
def test_ids_that_the_vocabulary_does_not_have_do_nothing(config: dict[str, Any], words: Path) -> None:
    found = infer_special_tokens(read_tokenizer(words), config, {})
    assert found is not None
    assert (found.end, found.begin, found.stops, found.pad, found.text) == (
        260,
        261,
        (),
        None,
        SequenceTemplate(before=(261,)),
    )


def test_without_a_tokenizer_the_config_s_vocabulary_counts() -> None:
    assert infer_special_tokens(None, {"vocab_size": 100, "eos_token_id": 50256}, {}) is None
    found = infer_special_tokens(None, {"vocab_size": 100, "eos_token_id": 7, "bos_token_id": 50256}, {})
    assert found is not None and (found.end, found.begin) == (7, 7)


def test_generation_is_set_by_its_own_settings_before_the_config(words: Path) -> None:
    said = {"eos_token_id": [260, 5, 6], "suppress_tokens": [8], "bad_words_ids": [[9], [1, 2]], "bos_token_id": None}
    found = infer_special_tokens(read_tokenizer(words), {"eos_token_id": 4, "decoder_start_token_id": 3}, said)
    assert found is not None
    assert (found.ends, found.never, found.decoder_start) == ((260, 5, 6), (9, 8), (3,))


@pytest.mark.parametrize("value", ["2", True, [1.5], [[1]], {"a": 1}])
def test_what_is_no_id_is_refused_by_its_key(value: Any) -> None:
    with pytest.raises(ConfigError, match="eos_token_id: want an id or a list of ids"):
        infer_special_tokens(None, {"eos_token_id": value}, {})


def test_the_ends_of_turns_and_messages_in_a_gguf_file_stop_it_too(tmp_path: Path) -> None:
    keys = llama_keys() | {f"tokenizer.ggml.{name}_token_id": id for name, id in (("eos", 1), ("eot", 2), ("eom", 3))}
    (tmp_path / "a.gguf").write_bytes(gguf(keys, llama_tensors()))
    assert find_source(tmp_path / "a.gguf").generation() == {"eos_token_id": [1, 2, 3]}


def test_links_to_a_gguf_file_are_followed_where_the_caller_or_a_hub_s_cache_has_them(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a" / "blobs", tmp_path / "models--a" / "snapshots" / "b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "hash").write_bytes(gguf(llama_keys(), llama_tensors()))
    (snapshot / "a.gguf").symlink_to("../../blobs/hash")
    for place in (snapshot, snapshot / "a.gguf"):
        assert "a GGUF file, family llama" in find_source(place).describe()
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.gguf").symlink_to(blobs / "hash")
    with pytest.raises(DamageError, match="a link, not a file"):
        find_source(other).describe()


def test_an_adapter_over_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    with pytest.raises(UsageError, match="is itself an adapter; want a model"):
        find_source(tmp_path).model()


def test_an_unknown_family_is_reported_before_its_weights_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llamma"}))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UsageError, match=r"model_type 'llamma' is not known.*did you mean 'llama'"):
        find_source(tmp_path).model()
    assert find_source(folder(tmp_path / "known")).model().config is not None


@pytest.mark.parametrize("name", ["__main__", "sys", "..", "", "no such"])
def test_what_is_no_package_is_reported_in_a_line(name: str) -> None:
    with pytest.raises(UsageError, match="no such package is installed"):
        find_source(f"package:{name}")


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "vocab.txt"])
def test_papers_that_are_links_out_of_a_folder_are_not_read(name: str, words: Path, tmp_path: Path) -> None:
    path = folder(tmp_path / "theirs")
    (path / "tokenizer.json").write_bytes((words / "tokenizer.json").read_bytes())
    (tmp_path / "secret").write_text("{}")
    (path / name).symlink_to(tmp_path / "secret")
    for ask in (find_source(path).template, find_source(path).tokenizer):
        with pytest.raises(DamageError, match=f"{name}: a link, not a file"):
            ask()


def test_a_classifier_gives_the_scores_of_its_classes(tmp_path: Path) -> None:
    config = hf.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    theirs = hf.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    ids = torch.tensor([[2, 5, 6, 3]])
    torch.testing.assert_close(heddle.load(tmp_path).logits(ids.tolist()), theirs(ids).logits.detach())
