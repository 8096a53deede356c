"""Translation keeps lines and their order, does not depend on batches, and is graded as sacrebleu grades."""

import sys

import pytest
from cli.runs import config, loud_model
from tasks.pair_runs import CONTEXT, TOKENIZER, loud_pair

from heddle.core import DataError, MissingExtra, UsageError, replace
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, generate
from heddle.decoding.search import BeamSearch, expected_utilities
from heddle.models.networks import LanguageModel
from heddle.tasks.generation import MinimumBayesRisk, bleu_metric, bleu_score, translator
from heddle.tasks.metrics import chrf

HOW = GenerationConfig(max_tokens=12, strategy=BeamSearch(beams=2, length_penalty=1.0))
LINES = ["the cat", "", "a big dog sees the cat", "  ", "dog", "the dog and a cat"]


def test_a_line_in_is_a_line_out_and_blank_lines_stay_blank() -> None:
    found = list(translator(loud_pair(), TOKENIZER, HOW).run(LINES))
    assert [bool(text) for text in found] == [bool(line.strip()) for line in LINES]
    assert not any("\n" in text for text in found)


def test_batches_change_nothing() -> None:
    model = loud_pair()
    whole = list(translator(model, TOKENIZER, HOW).run(LINES))
    for batch, ahead in ((1, 1), (2, 1), (2, 2), (3, 16)):
        assert list(translator(model, TOKENIZER, HOW, batch, ahead).run(LINES)) == whole


def test_a_translation_is_what_the_model_generates() -> None:
    model = loud_pair()
    source = [*TOKENIZER.encode(LINES[0]), TOKENIZER.end]
    (ids,) = generate(model, [[]], HOW.with_special_tokens(TOKENIZER.end, (TOKENIZER.end,)), [source])
    assert list(translator(model, TOKENIZER, HOW).run(LINES[:1])) == [" ".join(TOKENIZER.decode(ids).split())]


def test_the_best_few_are_listed_with_their_scores_and_begin_with_the_best() -> None:
    model = loud_pair()
    few = GenerationConfig(max_tokens=12, samples=3, strategy=BeamSearch(beams=3, length_penalty=1.0))
    lists = list(translator(model, TOKENIZER, few).translations(LINES))
    best = list(translator(model, TOKENIZER, replace(few, samples=1)).run(LINES))
    assert [found.text for found in lists] == best
    for line, found in zip(LINES, lists, strict=True):
        assert len(found.candidates) == (3 if line.strip() else 0)
        scores = [candidate.scores["score"] for candidate in found.candidates]
        assert scores == sorted(scores, reverse=True)


def test_coverage_and_groups_reach_the_search() -> None:
    model = loud_pair()
    choices = {
        "plain": BeamSearch(beams=4),
        "coverage": BeamSearch(beams=4, coverage=30.0),
        "groups": BeamSearch(beams=4, groups=4, diversity=30.0),
    }
    lists = {
        name: list(
            translator(model, TOKENIZER, GenerationConfig(max_tokens=12, samples=2, strategy=choice)).translations(
                LINES
            )
        )
        for name, choice in choices.items()
    }
    lists = {name: [[c.text for c in found.candidates] for found in each] for name, each in lists.items()}
    assert lists["plain"] != lists["coverage"] and lists["plain"] != lists["groups"]


def test_the_least_risk_is_what_samples_agree_with_most() -> None:
    model, draw = (
        loud_pair(),
        GenerationConfig(max_tokens=12, samples=6, strategy=MultinomialSampling(temperature=0.7, seed=5)),
    )
    drawn = list(translator(model, TOKENIZER, draw).translations(LINES))
    chosen = list(translator(model, TOKENIZER, draw, ranking=MinimumBayesRisk(chrf)).translations(LINES))
    for all_, found in zip(drawn, chosen, strict=True):
        if not all_.candidates:
            assert found.text == ""
            continue
        wanted = expected_utilities([c.text for c in all_.candidates], chrf)
        assert {c.text: c.scores["score"] for c in found.candidates} == wanted
        assert found.text == next(iter(wanted))
    alone = translator(model, TOKENIZER, draw, 1, 1, MinimumBayesRisk(chrf))
    assert list(alone.translations(LINES)) == chosen


def test_answers_come_before_all_lines_are_read() -> None:
    def lines():  # type: ignore[no-untyped-def]
        yield "the cat"
        read.append(True)
        yield "a dog"

    read: list[bool] = []
    next(translator(loud_pair(), TOKENIZER, HOW, batch=1, ahead=1).run(lines()))
    assert not read


def test_what_cannot_be_translated_is_named() -> None:
    with pytest.raises(UsageError, match="line 2: source: 41 tokens are more than the model's context of 40"):
        list(translator(loud_pair(), TOKENIZER, HOW).run(["cat", "x" * CONTEXT]))
    with pytest.raises(UsageError, match="line 1: source: want at most 100,000 characters, got 1,000,000"):
        list(translator(loud_pair(), TOKENIZER, HOW).run(["x" * 1_000_000]))
    writer = loud_model(config())
    assert isinstance(writer, LanguageModel)
    with pytest.raises(UsageError, match="want an encoder-decoder"):
        translator(writer, TOKENIZER, HOW)
    with pytest.raises(UsageError, match="batch: want at least 1"):
        translator(loud_pair(), TOKENIZER, HOW, batch=0)


def test_gold_translations_score_100() -> None:
    gold = ["Ein Hund sieht eine Katze.", "Zwei Männer laufen am Strand entlang."]
    assert bleu_score(gold, gold).bleu == pytest.approx(100.0)


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_score_is_that_of_the_library(lowercase: bool) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    right = ["Ein Hund sieht eine schwarze Katze.", "Zwei Männer laufen am Strand entlang."]
    found = ["ein hund sieht eine weiße Katze .", "Zwei Männer laufen am Strand."]
    wanted = sacrebleu.corpus_bleu(found, [right], lowercase=lowercase).score
    measure_weights = bleu_score(found, right, lowercase=lowercase)
    assert measure_weights.bleu == wanted and 0 < wanted < 100
    assert (
        f"case:{'lc' if lowercase else 'mixed'}" in measure_weights.signature and "tok:13a" in measure_weights.signature
    )


def test_references_must_be_as_many_as_lines() -> None:
    with pytest.raises(DataError, match="references: want 2, one for each line, found 1"):
        bleu_score(["a", "b"], ["a"])
    with pytest.raises(DataError, match="want one line or more"):
        bleu_score([], [])


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sacrebleu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingExtra, match=r"pip install 'heddle\[eval\]'"):
        bleu_metric()
