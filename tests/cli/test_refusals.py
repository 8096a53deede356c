"""What Python callers get wrong is refused in one line; a config is checked before its text is read."""

from pathlib import Path

import pytest
import torch
from cli.runs import TOKENIZER, config, save_run

import heddle
from heddle.cli.main import main
from heddle.core import HeddleError
from heddle.models.networks.model import check_inputs
from heddle.recipes import RECIPES
from heddle.text.tokenizers import CharacterTokenizer
from heddle.training.checks import rows_per_process
from heddle.training.run import apply_overrides

SMALL = ["model.layers=1", "model.width=16", "model.heads=2", "rows.length=32", "training.steps=2", "training.batch=2"]


@pytest.mark.parametrize("size", ["layers", "width", "heads", "vocab", "context"])
def test_a_size_of_nothing_is_refused_by_its_name(size: str) -> None:
    with pytest.raises(HeddleError, match=f"^{size}: want at least 1, got 0$"):
        heddle.build("first", **{size: 0})


@pytest.mark.parametrize("wrong", [5, None, b"x", ["a"]])
def test_what_is_no_text_is_not_encoded(wrong: object) -> None:
    for tokenizer in (TOKENIZER, CharacterTokenizer().train(["abc"])):
        with pytest.raises(HeddleError, match=r"^encode: want a text, got "):
            tokenizer.encode(wrong)


def test_wrong_ids_are_refused_by_their_numbers() -> None:
    model = config().build(0)
    for ids, got in ((TOKENIZER.vocab, TOKENIZER.vocab), (-1, -1)):
        with pytest.raises(HeddleError, match=f"^model: want ids from 0 to {TOKENIZER.vocab - 1}, got {got}$"):
            model(torch.tensor([[1, ids]]))
    assert model(torch.tensor([[1, 2]])).shape == (1, 2, 16)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([[1, 2]], r"want ids as a tensor, such as torch.tensor\(\[\[1, 2, 3\]\]\), got \[\[1, 2\]\]"),
        (torch.tensor([1, 2]), r"got int64 of shape \(2,\)"),
        (torch.ones(1, 2), r"got float32 of shape \(1, 2\)"),
    ],
)
def test_what_is_no_batch_of_ids_is_refused(wrong: object, said: str) -> None:
    with pytest.raises(HeddleError, match=said):
        check_inputs(wrong, 10)


@pytest.mark.parametrize(
    "word",
    [
        "model.heads=3",
        "objective=masked_token",
        "model.width=0",
        "frozen=[nosuch]",
        "tokenizer={kind: bpe, vocab: 100}",
        "tokenizer={kind: bpe, vocab: 300}&model.vocab=280",
    ],
)
def test_a_config_is_checked_before_its_text_is_read(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("some text\n" * 50)
    monkeypatch.setattr("heddle.data.sources.CorpusConfig.sample", lambda *_: pytest.fail("read the text"))
    assert main(["train", "first", "data=corpus.txt", "hardware.device=cpu", *SMALL, *word.split("&")]) == 2
    assert "reading the text" not in capsys.readouterr().out
    assert not [path for path in Path("runs").glob("*") if path.name != ".data"]


def test_references_are_counted_before_the_translation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacrebleu")
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a\nb")
    Path("ref.txt").write_text("a\n")
    monkeypatch.setattr("heddle.cli.translate.open_model", lambda *_: pytest.fail("loaded a model"))
    assert main(["translate", "in.txt", "--reference", "ref.txt"]) == 2
    assert "ref.txt: want 2 lines, one for each of in.txt, found 1" in capsys.readouterr().err


def test_a_smaller_batch_takes_a_recipes_micro_batch_along() -> None:
    recipe = RECIPES["gpt2"]()
    assert recipe.training.micro_batch == 32
    assert apply_overrides(recipe, [("training.batch", 8)]).training.micro_batch == 8
    assert apply_overrides(recipe, [("training.batch", 64)]).training.micro_batch == 32
    both = apply_overrides(recipe, [("training.micro_batch", 100), ("training.batch", 8)])
    with pytest.raises(HeddleError, match=r"^training\.micro_batch: want at most training\.batch, 8, got 100$"):
        rows_per_process(both.training, 1)


def test_a_conversion_that_fails_leaves_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(Path("run"))
    Path("there").mkdir()
    assert main(["convert", "run", "deep/er/out", "--family", "t5"]) == 2
    assert main(["convert", "run", "there/out", "--family", "t5"]) == 2
    assert "t5: cannot express this model" in capsys.readouterr().err
    assert not Path("deep").exists() and list(Path("there").iterdir()) == []


def test_one_text_in_one_result_out(tmp_path: Path) -> None:
    save_run(tmp_path / "run")
    lm = heddle.load(tmp_path / "run")
    alone, (listed,) = lm.score("a b"), lm.score(["a b"])
    assert alone.logprob == listed.logprob
    assert f"logprob={alone.logprob:.4f}" in repr(alone) and "perplexity=" in repr(alone)
    after, (again,) = lm.score(" b", context="a"), lm.score([" b"], context=["a"])
    assert after.logprob == again.logprob
    vector = lm.embed("a b")
    assert vector.shape == (16,) and torch.equal(vector, lm.embed(["a b"])[0])
