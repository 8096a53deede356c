"""Masked words: the same words are hidden whatever the vocabulary, and their loss is that of the model."""

import json
from pathlib import Path

import pytest
import torch
from reliability.harness import tiny, trainer_for, write_text

import heddle
from heddle.cli.main import main
from heddle.core import ConfigError, UsageError, replace
from heddle.models.presets import PresetConfig
from heddle.objectives import MaskedTokenConfig
from heddle.tasks.evaluation import GradedModel, HiddenWords, MaskedWordsTask, hide_words
from heddle.text.tokenizers import BpeTokenizer

TASK = MaskedWordsTask()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an encoder with a vocabulary of pieces, and its text beside it."""
    root = tmp_path_factory.mktemp("masked")
    config = tiny(write_text(root / "text.txt"), training__steps=2, training__average=None, rows__length=256)
    model = PresetConfig(name="bert-base-masked", layers=1, width=32, heads=2)
    config = replace(config, model=model, objective=MaskedTokenConfig(), tokenizer=BpeTokenizer(vocab=270))
    trainer_for(config, root / "run").fit()
    return root / "run"


def test_pieces_are_cut_between_words_and_a_share_of_their_words_is_hidden() -> None:
    text = " ".join(f"word{number}" for number in range(400)) + "\n"
    pieces = hide_words(text)
    assert " ".join(piece.text for piece in pieces) == text.strip() and max(len(p.text) for p in pieces) <= 240
    hidden = [piece.text[start:stop] for piece in pieces for start, stop in piece.hidden]
    assert len(hidden) == pytest.approx(60, abs=6) and set(hidden) <= set(text.split())
    assert pieces == hide_words(text) and pieces[0].hidden != hide_words(text + "more")[0].hidden
    assert hide_words("one") == [HiddenWords("one", ((0, 3),))] and hide_words(" \n") == []


def test_the_loss_is_that_of_the_hidden_tokens(run: Path) -> None:
    lm = heddle.load(run)
    text = "the cat sat on the mat and sees a red tree"
    one = HiddenWords(text, ((4, 7), (33, 36)))
    ids, spans = lm.tokenizer.encode(text), lm.tokenizer.spans(text)
    hidden = [at for at, (a, b) in enumerate(spans) if any(x < b and a < y for x, y in one.hidden)]
    assert len(hidden) >= 2
    mask = lm.tokenizer.special_tokens.mask
    shown = torch.tensor([[lm.tokenizer.end, *(mask if at in hidden else id for at, id in enumerate(ids))]])
    logits = lm.model.cpu().eval().scores("masked_token", shown)[0, 1:].detach().double().log_softmax(-1)  # type: ignore[operator]
    wanted = -sum(float(logits[at, ids[at]]) for at in hidden)
    found = TASK.predict(GradedModel(lm.model, lm.tokenizer), [one, *hide_words(text)])
    assert found[0] == pytest.approx(wanted, rel=1e-4)
    metrics = TASK.metrics(found[:1], [one])
    assert metrics["loss_per_character"] == pytest.approx(wanted / 6)
    assert metrics["loss_per_word"] == pytest.approx(wanted / 2)


def test_the_verb_grades_a_file_and_refuses_what_has_no_masks(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_text(tmp_path / "new.txt", lines=12, seed=7)
    assert main(["evaluate", "-m", str(run), "--task", "masked_words", "--data", str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["intervals"]["loss_per_character"]
    assert low < found["loss_per_character"] < high and found["examples"] == len(hide_words(data.read_text()))
    lm = heddle.load(run)
    with pytest.raises(ConfigError, match=r"context: want \d+ tokens and the special ones, for 240 characters"):
        TASK.predict(GradedModel(lm.model, lm.tokenizer), [HiddenWords("ÿ" * 300, ((0, 1),))])
    decoder = heddle.build("gpt2", layers=1, width=8, heads=2, vocab=lm.tokenizer.vocab)
    with pytest.raises(UsageError, match="masked_words: want an encoder"):
        TASK.predict(GradedModel(decoder, lm.tokenizer), hide_words("a b"))
