"""Tokenizer configs are read as in transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from text.formats.conftest import ours
from text.formats.makers import bert, strings
from tokenizers import Tokenizer

from heddle.core import DataError
from heddle.text.formats import ImportedTokenizer, read_tokenizer

Get = Callable[[str], Any]


def changed(source: Path, folder: Path, told: dict[str, Any] | None = None, **files: Any) -> Path:
    """Copy a folder, with more told in its tokenizer's config and other files beside it."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**before, **(told or {})}))
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def hold(folder: Path) -> ImportedTokenizer:
    """Assert that names, added tokens, frames and ids are those of transformers."""
    from transformers import AutoTokenizer

    theirs, found = AutoTokenizer.from_pretrained(folder), read_tokenizer(folder)
    assert found is not None
    assert dict(found.named) == {k: v for k, v in theirs.special_tokens_map.items() if isinstance(v, str)}
    tokens = {i: (t.content, t.special) for i, t in found.pipeline.get_added_tokens_decoder().items()}
    assert tokens == {i: (t.content, t.special) for i, t in theirs.added_tokens_decoder.items()}
    tokenizer = ours(found)
    for text in [*strings(40, seed=8), "a<tool>b <tool> c", " <new> x", "a <think> b <think>"]:
        ids = [*found.before, *tokenizer.encode(text), *found.after]
        assert ids == theirs(text, split_special_tokens=True)["input_ids"], text
    return found


def ours_of(folder: Path) -> Any:
    found = read_tokenizer(folder)
    assert found is not None
    return ours(found)


def _state(token: Any) -> str:
    flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return json.dumps({flag: getattr(token, flag) for flag in flags})


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "llama"])
@pytest.mark.parametrize(
    "kind", ["HerbertTokenizer", "CamembertTokenizer", "MBartTokenizer", "BertJapaneseTokenizer", "LongformerTokenizer"]
)
def test_files_of_a_class_that_is_not_known_are_refused_by_its_name(
    name: str, kind: str, folder: Get, tmp_path: Path
) -> None:
    changed(folder(name), tmp_path, {"tokenizer_class": kind})
    with pytest.raises(DataError, match=f"tokenizer_class: want one of .*, got '{kind}'"):
        read_tokenizer(tmp_path)


def test_files_of_a_model_type_whose_class_is_not_known_are_refused(folder: Get, tmp_path: Path) -> None:
    changed(folder("xlm_roberta"), tmp_path, config={"model_type": "camembert"})
    with pytest.raises(DataError, match=r"tokenizer_class: want one of .*, got 'camembert'"):
        read_tokenizer(tmp_path)


def test_switch_has_the_words_of_t5(folder: Get, tmp_path: Path) -> None:
    found = hold(changed(folder("t5"), tmp_path, config={"model_type": "switch_transformers"}))
    assert found.after == (1,) and found.named["eos_token"] == "</s>"


def test_gpt_s_words_may_be_added_to_and_have_an_end(folder: Get, tmp_path: Path) -> None:
    found = hold(changed(folder("gpt"), tmp_path, {"eos_token": "<end>", "tokenizer_class": "OpenAIGPTTokenizerFast"}))
    assert found.pipeline.token_to_id("<end>") == 600


def test_flags_put_tokens_around_a_text(folder: Get, tmp_path: Path) -> None:
    found = hold(changed(folder("gpt2"), tmp_path, {"add_bos_token": True, "add_eos_token": True}))
    end = found.pipeline.get_vocab()["<|endoftext|>"]
    assert (found.before, found.after) == ((end,), (end,))


def test_flags_do_not_change_a_class_s_own_frame(folder: Get, tmp_path: Path) -> None:
    found = hold(changed(folder("roberta"), tmp_path, {"add_bos_token": False}))
    assert (found.before, found.after) == ((0,), (2,))


def test_flags_beside_a_tokenizer_json_count_for_nothing(folder: Get, tmp_path: Path) -> None:
    found = hold(changed(folder("whole_llama3"), tmp_path, {"add_bos_token": False, "add_eos_token": True}))
    assert (found.before, found.after) == ((0,), ())


def test_padding_and_truncation_in_a_file_count_for_nothing(folder: Get, tmp_path: Path) -> None:
    place = changed(folder("whole_llama3"), tmp_path)
    pipeline = Tokenizer.from_file(str(place / "tokenizer.json"))
    pipeline.enable_padding(length=64)
    pipeline.enable_truncation(32)
    pipeline.save(str(place / "tokenizer.json"))
    found = read_tokenizer(place)
    assert found is not None and (found.before, found.after) == ((0,), ())
    assert len(ours(found).encode("a b " * 100)) > 150


def test_flags_of_added_tokens_in_the_papers_count(folder: Get, tmp_path: Path) -> None:
    found = ours_of(changed(folder("whole_llama3"), tmp_path))
    listed = {str(i): json.loads(_state(t)) for i, t in found.added.items()}
    listed["700"]["lstrip"] = True  # <think>
    hold(changed(folder("whole_llama3"), tmp_path, {"added_tokens_decoder": listed}))
    assert ours_of(tmp_path).encode("a <think>b") != found.encode("a <think>b")


def test_a_map_of_special_tokens_names_them(folder: Get, tmp_path: Path) -> None:
    named = {"pad_token": "<pad>", "mask_token": {"content": "<mask>", "lstrip": True, "normalized": False}}
    found = hold(changed(folder("gpt2"), tmp_path, special_tokens_map=named))
    assert found.pipeline.get_vocab_size() == 702  # both take the next ids


def test_added_tokens_in_a_file_of_their_own_are_added(folder: Get, tmp_path: Path) -> None:
    size = len(json.loads((folder("gpt2") / "vocab.json").read_text()))
    told = {"pad_token": "<pad>"}
    hold(changed(folder("gpt2"), tmp_path, told, added_tokens={"<tool>": size, "<pad>": size + 1}))


def test_named_tokens_can_be_expressly_missing(folder: Get, tmp_path: Path) -> None:
    found = hold(changed(folder("neox"), tmp_path, {"pad_token": None}))
    assert "pad_token" not in found.named


def test_names_of_a_class_are_known_beside_a_bare_tokenizer_json(tmp_path: Path) -> None:
    bert(tmp_path)
    read = read_tokenizer(tmp_path)
    assert read is not None
    bare = tmp_path / "bare"
    bare.mkdir()
    read.pipeline.save(str(bare / "tokenizer.json"))
    (bare / "config.json").write_text('{"model_type": "bert"}')
    again = read_tokenizer(bare)
    assert again is not None and again.named == read.named and again.source == "tokenizer.json"


@pytest.mark.parametrize(("told", "limit"), [(512, 512), (int(1e30), None), (1e30, None), ("x", None), (None, None)])
def test_the_limit_is_a_number_of_tokens_or_none(folder: Get, tmp_path: Path, told: Any, limit: int | None) -> None:
    found = read_tokenizer(changed(folder("gpt2"), tmp_path, {"model_max_length": told}))
    assert found is not None and found.limit == limit


def test_templates_come_along(folder: Get, tmp_path: Path) -> None:
    found = read_tokenizer(changed(folder("gpt2"), tmp_path, {"chat_template": "in the config"}))
    assert found is not None and found.template == "in the config"
    (tmp_path / "chat_template.jinja").write_text("in a file")
    found = read_tokenizer(tmp_path)
    assert found is not None and found.template == "in a file"


def test_the_first_format_in_order_counts(folder: Get, tmp_path: Path) -> None:
    both = changed(folder("gpt2"), tmp_path)
    (both / "vocab.txt").write_text("[UNK]\n")
    found = read_tokenizer(both)
    assert found is not None and found.source == "vocab.json and merges.txt"
    found.pipeline.save(str(both / "tokenizer.json"))
    assert isinstance(Tokenizer.from_file(str(both / "tokenizer.json")), Tokenizer)
    found = read_tokenizer(both)
    assert found is not None and found.source == "tokenizer.json"
