"""What a default recipe trains can leave: a Hugging Face folder that `transformers` loads, tokenizer included."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import BOUND, no_complaint
from cli.runs import save_run

import heddle
from heddle.cli.main import main
from heddle.core import replace
from heddle.models.networks import Encoder
from heddle.models.presets import PresetConfig
from heddle.recipes import RECIPES
from heddle.text.tokenizers import BpeTokenizer, CharacterTokenizer, Tokenizer

RECURRENT = {"lstm", "lstm_characters", "awd_lstm", "awd_lstm_sgd", "translate_lstm", "translate_attention"}
# `finetune`, `distill` and `dpo` have the model that they start from, and nothing else has speedrun's shortcuts
WITHOUT = dict.fromkeys(("finetune", "distill", "dpo"), "a model of others") | {
    "speedrun": "no family",
    "retrieve_and_edit": "no family",
    "transcribe": "no family",
    "transcribe_lstm": "no family",
    "transcribe_ctc": "no family",
    "transcribe_audio_visual": "no family",
    "caption": "no family",
    "caption_lstm": "no family",
    "caption_video": "no family",
    "classify_images": "a model of images",
}
# The class of `transformers` that has the output of each encoder, what it calls its scores, and the output's name here.
ENCODERS: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "answer": (hf.AutoModelForQuestionAnswering, ("start_logits", "end_logits"), "span"),
    "bert": (hf.AutoModelForMaskedLM, ("logits",), "masked_token"),
    "electra": (hf.AutoModelForPreTraining, ("logits",), "replaced_token"),
    "tag": (hf.AutoModelForTokenClassification, ("logits",), "token_class"),
}
SENTENCES = {"embed"}  # laid out for sentence-transformers
MEAN_POOLING = {"classify", "similarity"}  # before a classifier, which no family has
ELSEWHERE = RECURRENT | WITHOUT.keys() | ENCODERS.keys() | SENTENCES | MEAN_POOLING
# T5's config in `transformers` 5 says that all matrices are tied, whatever the folder says. Those of T5 1.1 are not:
# they are loaded as they are, and the config is said to be wrong.
TOLD = {"t5": "so we will NOT tie them"}
TEXT = "Once upon a time, the cat's mat was 12 years old; nobody sat there (but the DOG).\n"
NEW = 50


def made(recipe: str, path: Path) -> Tokenizer:
    """Save a run of a recipe's model and tokenizer, both small."""
    config = RECIPES[recipe]()
    algorithm = config.tokenizer
    if isinstance(algorithm, BpeTokenizer):
        algorithm = replace(algorithm, vocab=300)
    assert isinstance(algorithm, BpeTokenizer | CharacterTokenizer)
    tokenizer = algorithm.train([TEXT * 20])
    assert isinstance(config.model, PresetConfig)
    hidden = None if config.model.hidden is None else 96
    small = replace(config.model, layers=2, width=48, heads=2, hidden=hidden, vocab=tokenizer.vocab, context=64)
    model = config.objective.model_for(small.expand()) if config.objective.reads_examples else small
    save_run(path, model, tokenizer=tokenizer)
    return tokenizer


@pytest.mark.parametrize("recipe", sorted(RECIPES.keys() - ELSEWHERE))
@torch.no_grad()
def test_a_default_recipe_leaves_for_transformers(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = made(recipe, tmp_path / "runs" / "one")
    assert main(["convert", "runs/one", "out"]) == 0
    pairs = json.loads(Path("out/config.json").read_text()).get("is_encoder_decoder", False)
    kind = hf.AutoModelForSeq2SeqLM if pairs else hf.AutoModelForCausalLM
    with no_complaint(but=TOLD.get(recipe)), warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs, told = kind.from_pretrained("out", output_loading_info=True)
        words = hf.AutoTokenizer.from_pretrained("out")
    assert not any(told.values())
    ours, end = heddle.load("runs/one"), tokenizer.end
    for text in (TEXT, "Once", "the cat", "  12 dogs\n\nsat  "):
        ids = tokenizer.encode(text)
        assert words(text, add_special_tokens=False)["input_ids"] == ids
        encode = tokenizer.source if pairs else tokenizer.encode_with_special_tokens
        assert words(text)["input_ids"] == encode(text)
        assert words.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    ids = [end, *tokenizer.encode(TEXT)[:40]]
    row, source = torch.tensor([ids]), torch.tensor([tokenizer.source("the DOG sat")])
    given = {"input_ids": source, "decoder_input_ids": row} if pairs else {"input_ids": row}
    want = theirs.eval()(**given).logits
    got = ours.logits([ids], source=source.tolist()) if pairs else ours.logits([ids])
    assert want.std() > 0.1
    assert ((got - want).abs().max() / want.std()).item() <= BOUND
    prompt = source if pairs else row[:, :9]
    with no_complaint():
        said = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW
        )[0].tolist()
    new = said[1:] if pairs else said[9:]
    assert ours.generate_ids(prompt.tolist(), max_tokens=NEW, min_tokens=NEW) == [new]
    assert pairs or len(set(new)) > 4  # a tied encoder-decoder without training says one thing over and over


@pytest.mark.parametrize("recipe", sorted(ENCODERS))
@torch.no_grad()
def test_an_encoder_leaves_for_transformers(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = made(recipe, tmp_path / "runs" / "one")
    assert main(["convert", "runs/one", "out"]) == 0
    kind, names, output = ENCODERS[recipe]
    with no_complaint():
        theirs, told = kind.from_pretrained("out", output_loading_info=True)
    assert not any(told.values())
    same_tokens(tokenizer)
    ids = torch.tensor([tokenizer.encode_with_special_tokens(TEXT)[:40]])
    found = theirs.eval()(input_ids=ids)
    want = torch.stack([found[name] for name in names], 1) if len(names) > 1 else found[names[0]]
    model = heddle.load("runs/one").model
    assert isinstance(model, Encoder) and want.std() > 0.1
    got = model.scores(output, ids)
    got = got[..., 1] if output == "replaced_token" else got  # of two classes here the first has a score of 0
    assert got.shape == want.shape and ((got - want).abs().max() / want.std()).item() <= BOUND


def same_tokens(tokenizer: Tokenizer) -> None:
    """Fail where the exported tokenizer gives other ids."""
    words = hf.AutoTokenizer.from_pretrained("out")
    for text in (TEXT, "Once", "the cat", "  12 dogs\n\nsat  "):
        assert words(text)["input_ids"] == tokenizer.encode_with_special_tokens(text)


@torch.no_grad()
def test_sentence_embeddings_leave_for_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = made("embed", tmp_path / "runs" / "one")
    assert main(["convert", "runs/one", "out"]) == 0
    modules = json.loads(Path("out/modules.json").read_text())
    assert [(m["path"], m["type"].rpartition(".")[2]) for m in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Normalize", "Normalize"),
    ]
    pooling = json.loads(Path("out/1_Pooling/config.json").read_text())
    assert [name for name, on in pooling.items() if on is True] == ["pooling_mode_mean_tokens"]
    assert pooling["word_embedding_dimension"] == 48 and Path("out/2_Normalize").is_dir()
    with no_complaint():
        theirs, told = hf.AutoModel.from_pretrained("out", output_loading_info=True)
    assert not any(told.values())
    same_tokens(tokenizer)
    texts = [TEXT, "Once", "the DOG sat there"]
    want = [
        theirs.eval()(input_ids=torch.tensor([tokenizer.encode_with_special_tokens(text)])).last_hidden_state[0].mean(0)
        for text in texts
    ]
    for place in ("runs/one", "out"):
        found = heddle.load(place).embed(texts)
        torch.testing.assert_close(found, torch.nn.functional.normalize(torch.stack(want), dim=-1), atol=2e-6, rtol=0)
    assert main(["convert", "out", "again", "--to", "hf"]) == 0
    assert Path("again/modules.json").read_text() == Path("out/modules.json").read_text()
    assert "modules.json" not in caplog.text
    Path("again/modules.json").write_text(json.dumps([*modules, {"path": "3_Dense", "type": "models.Dense"}]))
    heddle.load("again")
    assert "again/modules.json: not followed" in caplog.text


@pytest.mark.parametrize(
    ("recipe", "edit"),
    [
        ("speedrun", "model=first has a family"),
        *((name, "it would fit with model.pooling=dense_first_token") for name in sorted(MEAN_POOLING)),
    ],
)
def test_where_no_family_fits_the_edit_that_would_is_named(
    recipe: str, edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made(recipe, tmp_path / "runs" / "one")
    assert main(["convert", "runs/one", "out"]) == 2
    assert edit in capsys.readouterr().err


def test_edits_that_would_fit_are_named_as_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = PresetConfig(layers=2, width=48, heads=2, vocab=257, context=64)
    save_run(tmp_path / "runs" / "one", replace(small, edits={"head.softcap": 9.0}))
    assert main(["convert", "runs/one", "out"]) == 2
    assert "it would fit with model.head.softcap=null" in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists()
    save_run(tmp_path / "runs" / "two", replace(small, edits={"head.softcap": None}))
    assert main(["convert", "runs/two", "out"]) == 0
