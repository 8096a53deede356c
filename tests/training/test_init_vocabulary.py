"""Pre-training in a domain: a run goes on from a model with an extended or a replaced vocabulary, and is exported."""

import random
from pathlib import Path

import pytest
import torch
from reliability.harness import tiny, trainer_for

import heddle
from heddle.checkpoints.store import load_config
from heddle.cli.main import main
from heddle.core import decode, replace
from heddle.core.system import read_config
from heddle.models.networks import Encoder
from heddle.models.presets import PresetConfig
from heddle.objectives import MaskedTokenConfig, NextTokenConfig
from heddle.text.tokenizers import BpeTokenizer, UnigramTokenizer, WordPieceTokenizer, load_tokenizer, old_pieces
from heddle.training import ExtendedVocabularyConfig, ReplacedVocabularyConfig, RunConfig

PLAIN = ("the", "old", "man", "sat", "by", "the", "sea", "and", "it", "was", "late")
DOMAIN = ("enzyme", "protein", "kinase", "phosphorylation", "genomic", "binding", "the", "and", "of")


def write(path: Path, words: tuple[str, ...]) -> Path:
    draw = random.Random(3)
    path.write_text("\n".join(" ".join(draw.choices(words, k=8)) + "." for _ in range(150)) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two texts, an encoder and a language model trained on the first of them."""
    root = tmp_path_factory.mktemp("domain")
    plain = write(root / "plain.txt", PLAIN)
    write(root / "domain.txt", DOMAIN)
    tokenizer = BpeTokenizer(vocab=280)
    for name, model, objective in (
        ("encoder", PresetConfig(name="bert-base-masked", layers=1, width=32, heads=2), MaskedTokenConfig()),
        ("lm", PresetConfig(name="first", layers=1, width=32, heads=2), NextTokenConfig()),
    ):
        config = tiny(plain, training__steps=2, training__average=None)
        trainer_for(replace(config, model=model, objective=objective, tokenizer=tokenizer), root / name).fit()
    assert main(["convert", str(root / "encoder"), str(root / "hf"), "--to", "hf"]) == 0
    return root


def going_on(folder: Path, name: str = "encoder") -> RunConfig:
    """Return a run that goes on from a model with 30 tokens of the domain."""
    config = tiny(folder / "domain.txt", training__steps=4, every__save=2, training__average=None)
    objective = NextTokenConfig() if name == "lm" else MaskedTokenConfig(unit="word")
    vocabulary = ExtendedVocabularyConfig(tokens=30)
    return replace(config, init=str(folder / name), init_vocabulary=vocabulary, objective=objective)


@pytest.mark.parametrize("name", ["encoder", "hf", "lm"])
def test_a_run_begins_with_the_rows_of_its_parent_and_the_means_of_pieces(
    name: str, folder: Path, tmp_path: Path
) -> None:
    parent = heddle.load(folder / name)
    model = trainer_for(going_on(folder, name), tmp_path / "run").model.cpu()
    tokenizer = load_tokenizer(tmp_path / "run" / "tokenizer.json")
    assert model.vocab == tokenizer.vocab == parent.tokenizer.vocab + 30
    pieces = old_pieces(parent.tokenizer, tokenizer)
    shapes = {key: weight.shape for key, weight in parent.model.weights().items()}
    grown = [key for key, weight in model.weights().items() if weight.shape != shapes[key]]
    assert grown
    for key in grown:
        old, new = parent.model.weights()[key], model.weights()[key]
        assert torch.equal(new[: len(old)], old)
        for id in range(len(old), len(new)):
            torch.testing.assert_close(new[id], old[list(pieces[id])].mean(0))
    if isinstance(model, Encoder):
        assert len(model.weights()) == len(parent.model.weights()), "embedding and output stay tied"


def test_a_run_with_new_tokens_resumes_in_the_same_bits_and_is_exported(folder: Path, tmp_path: Path) -> None:
    ended = []
    for name, stops in (("whole", (4,)), ("cut", (2, 4))):
        for steps in stops:
            path = tmp_path / name / "run" / "config.json"
            config = decode(RunConfig, load_config(read_config(path), path)) if path.exists() else going_on(folder)
            trainer = trainer_for(replace(config, training=replace(config.training, steps=steps)), path.parent)
            trainer.fit()
        ended.append(trainer.model.weights())
    assert all(torch.equal(weight, ended[1][key]) for key, weight in ended[0].items())
    transformers = pytest.importorskip("transformers")
    place = str(tmp_path / "hf")
    assert main(["convert", str(tmp_path / "cut" / "run"), place, "--to", "hf"]) == 0
    lm, theirs = heddle.load(tmp_path / "cut" / "run"), transformers.AutoTokenizer.from_pretrained(place)
    text = "the genomic protein and binding kinase."
    ids = lm.tokenizer.encode(text)
    assert theirs(text, add_special_tokens=False)["input_ids"] == ids and max(ids) >= 280
    model = transformers.AutoModelForMaskedLM.from_pretrained(place).eval()
    assert model.config.vocab_size == lm.tokenizer.vocab
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits
    torch.testing.assert_close(
        lm.model.cpu().float().scores("masked_token", torch.tensor([ids])), wanted, atol=1e-4, rtol=1e-4
    )  # type: ignore[operator]


@pytest.mark.parametrize("kind", [BpeTokenizer(vocab=275), WordPieceTokenizer(vocab=60), UnigramTokenizer(vocab=262)])
def test_a_replaced_vocabulary_is_that_of_the_run_s_own_tokenizer(
    kind: BpeTokenizer, folder: Path, tmp_path: Path
) -> None:
    config = replace(going_on(folder), init_vocabulary=ReplacedVocabularyConfig(), tokenizer=kind)
    trainer = trainer_for(config, tmp_path / "run")
    trainer.fit()
    tokenizer = load_tokenizer(tmp_path / "run" / "tokenizer.json")
    assert tokenizer.vocab == trainer.model.vocab == kind.vocab
    given = replace(
        config,
        tokenizer=decode(type(config), {"tokenizer": {"kind": "pretrained", "path": str(folder / "lm")}}).tokenizer,
    )
    assert (
        trainer_for(given, tmp_path / "given").model.vocab == load_tokenizer(folder / "lm" / "tokenizer.json").vocab + 1
    )


def test_the_command_says_how_tokens_begin_and_bad_wishes_are_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    start = [
        "train",
        "bert",
        f"data={folder / 'domain.txt'}",
        "training.steps=1",
        "rows.length=32",
        "hardware.device=cpu",
    ]
    init = [f"init={folder / 'encoder'}"]
    new = ["init_vocabulary=extended", "init_vocabulary.tokens=20"]
    assert main([*start, *init, *new, "name=ok"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "vocabulary of 300 tokens: 280 begin as one of the model in init, 20 begin as the mean of their old" in said
    assert main([*start, *init, "init_vocabulary=replaced", "tokenizer.vocab=270", "name=other"]) == 0
    capsys.readouterr()
    for words, refusal in (
        ([*init, "tokenizer.vocab=270"], "to exchange the tokenizer: init_vocabulary=replaced"),
        (new, "init_vocabulary: want kept where no init names another model, got 'extended'"),
        ([*init, new[0], "init_vocabulary.tokens=0"], "init_vocabulary.tokens: want at least 1, got 0"),
        ([*init, new[0], "init_vocabulary.tokens=90000"], "init_vocabulary.tokens: want at most"),
        ([*init, "init_vocabulary=longer"], "init_vocabulary.kind: want one of extended, kept, replaced"),
    ):
        assert main([*start, *words, "name=bad"]) == 2
        error = capsys.readouterr().err
        assert refusal in error and error.count("\n") == 1, error
    assert not (tmp_path / "runs" / "bad").exists()
