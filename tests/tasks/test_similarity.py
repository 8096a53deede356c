"""Likenesses are those of the field's library, and lie between 0 and 1."""

import sys

import pytest

from heddle.core import ConfigError, MissingExtra
from heddle.tasks.metrics import chrf, similarity_named

TEXTS = [
    "Ein Hund sieht eine schwarze Katze.",
    "ein hund sieht die Katze .",
    "Zwei Männer laufen.",
    "",
    "a",
    "ab  ab",
    "日本語 の 文",
]


def test_chrf_is_sacrebleus() -> None:
    pytest.importorskip("sacrebleu")
    from sacrebleu.metrics.chrf import CHRF

    theirs = CHRF()
    for one in TEXTS:
        for other in TEXTS:
            assert chrf(one, other) == pytest.approx(theirs.sentence_score(one, [other]).score / 100), (one, other)


def test_bleu_is_sacrebleus() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    similarity = similarity_named("bleu")
    for one, other in (TEXTS[:2], TEXTS[1:3]):
        wanted = sacrebleu.sentence_bleu(one, [other], use_effective_order=True).score / 100
        assert similarity(one, other) == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["chrf", "words"])
def test_a_text_is_most_like_itself(name: str) -> None:
    similarity = similarity_named(name)
    for text in filter(None, TEXTS):
        assert similarity(text, text) == pytest.approx(1.0)
        assert all(0 <= similarity(text, other) <= 1 for other in TEXTS)


def test_a_wrong_name_and_a_missing_library_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="utility: want one of bleu, chrf, words, got 'chrff'; did you mean 'chrf'"):
        similarity_named("chrff")
    for name in [name for name in sys.modules if name.split(".")[0] == "sacrebleu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingExtra, match=r"pip install 'heddle\[eval\]'"):
        similarity_named("bleu")
