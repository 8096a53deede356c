"""What a default recipe trains can leave: a Hugging Face folder that `transformers` loads, tokenizer included."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import BOUND, no_complaint
from cli.runs import save_run

import heddle
from heddle.cli.main import main
from heddle.core import replace
from heddle.models.presets import PresetConfig
from heddle.recipes import RECIPES
from heddle.text.tokenizers import BpeTokenizer, CharacterTokenizer, Tokenizer

RECURRENT = {"lstm", "lstm_characters", "awd_lstm", "awd_lstm_sgd", "translate_lstm", "translate_attention"}
# `finetune`, `distill` and `dpo` have the model that they start from, and nothing else has speedrun's shortcuts
WITHOUT = dict.fromkeys(("finetune", "distill", "dpo"), "a model of others") | {
    "speedrun": "no family",
    "retrieve_and_edit": "no family",
}
ENCODERS = {"answer", "bert", "electra", "tag"}  # loaded below, without comparing logits or tokenizers
MEAN_POOLING = {"classify", "embed", "similarity"}  # which no family has
SENTINELS = {"t5"}  # transformers complains when it loads the folder; the cause is not known yet
ELSEWHERE = RECURRENT | WITHOUT.keys() | ENCODERS | MEAN_POOLING | SENTINELS
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
    save_run(path, small, tokenizer=tokenizer)
    return tokenizer


@pytest.mark.parametrize(
    "recipe", sorted(RECIPES.keys() - RECURRENT - WITHOUT.keys() - ENCODERS - MEAN_POOLING - SENTINELS)
)
@torch.no_grad()
def test_a_default_recipe_leaves_for_transformers(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = made(recipe, tmp_path / "runs" / "one")
    assert main(["convert", "runs/one", "out"]) == 0
    pairs = json.loads(Path("out/config.json").read_text()).get("is_encoder_decoder", False)
    kind = hf.AutoModelForSeq2SeqLM if pairs else hf.AutoModelForCausalLM
    with no_complaint(), warnings.catch_warnings():
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
def test_an_encoder_leaves_for_transformers(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(recipe, tmp_path / "runs" / "one")
    assert main(["convert", "runs/one", "out"]) == 0
    model = hf.AutoModel.from_pretrained("out")
    assert model.config.hidden_size == 48 and model.config.num_hidden_layers == 2


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
