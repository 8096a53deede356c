"""Translations of imported T5, BART and Marian are the ids of `transformers`' generate, by the models' own settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tasks.test_summarize import saved, texts

import heddle
from heddle.cli.main import main
from heddle.core import ConfigError
from heddle.lm import LM
from heddle.tasks.generation import translation_settings_of

OWN = {"num_beams": 3, "length_penalty": 0.7, "max_length": 14, "early_stopping": True, "no_repeat_ngram_size": 2}
GERMAN, FRENCH = ({"prefix": f"the {word} ", **OWN} for word in ("cat", "dog"))
MARIAN = {"bad_words_ids": [[1]], "forced_eos_token_id": 2, "num_beams": 4, "max_length": 12, "no_repeat_ngram_size": 2}


def with_tasks(folder: Path, tasks: dict[str, Any], **more: Any) -> LM:
    """Give a folder of theirs other tasks, as T5's config has them."""
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {"task_specific_params": tasks, **more}))
    return heddle.load(folder, device="cpu")


def marian(folder: Path) -> Any:
    """Turn a folder of BART into one of Marian, which starts the decoder by its padding; return the model."""
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in
             (("layers", 1), ("attention_heads", 4), ("ffn_dim", 40))}  # fmt: skip
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_bos_token_id": None}
    torch.manual_seed(3)
    config = hf.MarianConfig(vocab_size=vocab, d_model=32, max_position_embeddings=200, **sides, **special)
    model = hf.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name:
                continue  # sines, which a file of theirs does not have
            weight += (1.0 if "encoder_attn" in name else 0.3) * torch.randn_like(weight)
    model.generation_config.update(**MARIAN)
    model.save_pretrained(folder)
    return model


def lines_of(out: str) -> list[str]:
    return [json.loads(line)["text"] for line in out.splitlines()]


def theirs(model: Any, tokenizer: Any, line: str, **settings: Any) -> str:
    """Return their translation."""
    ids = model.generate(tokenizer(line, return_tensors="pt").input_ids, **settings, do_sample=False)[0]
    return " ".join(tokenizer.decode(ids, skip_special_tokens=True).split())


def test_t5_translates_by_the_prefix_and_the_settings_of_its_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer, _ = saved(tmp_path / "t5", "T5")
    with_tasks(tmp_path / "t5", {"summarization": {}, "translation_en_to_de": GERMAN, "translation_en_to_fr": FRENCH})
    given = texts(8)
    (tmp_path / "lines.txt").write_text("".join(line + "\n" for line in given))
    found = {}
    for task, own in (("en_to_de", GERMAN), ("translation_en_to_fr", FRENCH)):
        words = [str(tmp_path / "lines.txt"), "-m", str(tmp_path / "t5"), "--task", task, "--json", "--device", "cpu"]
        assert main(["translate", *words]) == 0
        found[task] = lines_of(capsys.readouterr().out)
        settings = {name: value for name, value in own.items() if name != "prefix"}
        assert found[task] == [theirs(model, tokenizer, f"{own['prefix']}{line}", **settings) for line in given]
    lm = heddle.load(tmp_path / "t5", device="cpu")
    assert lm.translate(given, task="en_to_de") == found["en_to_de"]
    assert lm.translate(given[0], task="en_to_fr") == found["translation_en_to_fr"][0]
    first, second = found.values()
    assert first != second and len(set(first)) > 3, "translations that are all alike prove little"
    assert main(["translate", str(tmp_path / "lines.txt"), "-m", str(tmp_path / "t5")]) == 2
    assert "task: want one of en_to_de, en_to_fr" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["Bart", "Marian"])
def test_bart_and_marian_translate_by_their_generation_config(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer, _ = saved(tmp_path / "m", "Bart", forced_end=2)
    if family == "Marian":
        model, settings = marian(tmp_path / "m"), {}
    else:
        settings = {**OWN, "early_stopping": False, "forced_eos_token_id": 2, "forced_bos_token_id": 0}
        with_tasks(tmp_path / "m", {"translation": settings}, **settings)
        kept = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
        (tmp_path / "m" / "generation_config.json").write_text(json.dumps(kept | settings))
    given = texts(12)[4:]
    (tmp_path / "lines.txt").write_text("".join(line + "\n" for line in given))
    assert main(["translate", str(tmp_path / "lines.txt"), "-m", str(tmp_path / "m"), "--json", "--device", "cpu"]) == 0
    found = lines_of(capsys.readouterr().out)
    assert found == [theirs(model, tokenizer, line, **settings) for line in given]
    assert len(set(found)) > 3, "translations that are all alike prove little"


def test_what_is_typed_comes_before_the_models_own_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer, _ = saved(tmp_path / "t5", "T5")
    lm = with_tasks(tmp_path / "t5", {"translation_en_to_de": GERMAN})
    (tmp_path / "lines.txt").write_text("rain on Oslo\n")
    words = [str(tmp_path / "lines.txt"), "-m", str(tmp_path / "t5"), "--beams", "1", "--max-tokens", "5", "--json"]
    assert main(["translate", *words]) == 0
    settings = {"num_beams": 1, "max_new_tokens": 5, "no_repeat_ngram_size": 2}
    want = theirs(model, tokenizer, f"{GERMAN['prefix']}rain on Oslo", **settings)
    assert lines_of(capsys.readouterr().out) == [want]
    assert main(["translate", *words[:3], "--choose", "mbr", "--samples", "3", "--json", "--device", "cpu"]) == 0
    assert len(lines_of(capsys.readouterr().out)) == 1
    assert lm.translate(["rain on Oslo", " "], beams=1, max_tokens=5) == [want, ""]
    drawn = [lm.translate("rain on Oslo", temperature=5.0, seed=seed, max_tokens=9) for seed in range(3)]
    assert len(set(drawn)) > 1, "a temperature turns the model's own beam search off"
    with pytest.raises(ConfigError, match="task: want one of en_to_de"):
        translation_settings_of(lm.origin.settings, lm.tokenizer, "en_to_xx")
    with pytest.raises(ConfigError, match="task: want none"):
        translation_settings_of({}, lm.tokenizer, "en_to_de")
