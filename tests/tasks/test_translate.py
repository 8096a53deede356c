"""Translation keeps lines and their order, does not depend on batches, and is graded as sacrebleu grades."""

import sys

import pytest
from cli.runs import config, loud_model
from tasks.pair_runs import CONTEXT, TOKENIZER, loud_pair

from heddle.core import DataError, MissingExtra, UsageError
from heddle.decoding import How, generate
from heddle.models import LanguageModel
from heddle.tasks import grade, metric, translator

HOW = How(max_tokens=12, beams=2, length_penalty=1.0)
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
    (ids,) = generate(model, [[]], HOW.at_end(TOKENIZER.end), [source])
    assert list(translator(model, TOKENIZER, HOW).run(LINES[:1])) == [" ".join(TOKENIZER.decode(ids).split())]


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
    writer = loud_model(config())
    assert isinstance(writer, LanguageModel)
    with pytest.raises(UsageError, match="want an encoder-decoder"):
        translator(writer, TOKENIZER, HOW)
    with pytest.raises(UsageError, match="batch: want at least 1"):
        translator(loud_pair(), TOKENIZER, HOW, batch=0)


def test_gold_translations_score_100() -> None:
    gold = ["Ein Hund sieht eine Katze.", "Zwei Männer laufen am Strand entlang."]
    assert grade(gold, gold).bleu == pytest.approx(100.0)


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_score_is_that_of_the_library(lowercase: bool) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    right = ["Ein Hund sieht eine schwarze Katze.", "Zwei Männer laufen am Strand entlang."]
    found = ["ein hund sieht eine weiße Katze .", "Zwei Männer laufen am Strand."]
    wanted = sacrebleu.corpus_bleu(found, [right], lowercase=lowercase).score
    graded = grade(found, right, lowercase=lowercase)
    assert graded.bleu == wanted and 0 < wanted < 100
    assert f"case:{'lc' if lowercase else 'mixed'}" in graded.signature and "tok:13a" in graded.signature


def test_references_must_be_as_many_as_lines() -> None:
    with pytest.raises(DataError, match="references: want 2, one for each line, found 1"):
        grade(["a", "b"], ["a"])
    with pytest.raises(DataError, match="want one line or more"):
        grade([], [])


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sacrebleu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingExtra, match=r"pip install 'heddle\[eval\]'"):
        metric()
