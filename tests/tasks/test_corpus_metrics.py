"""Measures: edits by bits equal the plain table and jiwer, BLEU from summed counts equals sacrebleu's."""

import random

import numpy as np
import pytest

from heddle.tasks.metrics import Bleu, WordErrorRate, edit_distance
from heddle.text.normalize import NormalizerConfig


def plain_edits(left: list[str], right: list[str]) -> int:
    """Fill the table of distances row by row."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        above, row = row, [i]
        for j, b in enumerate(right, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
    return row[-1]


def drawn(draw: random.Random, most: int = 30, words: str = "abcd") -> list[str]:
    return draw.choices(words, k=draw.randint(0, most))


def test_edits_equal_the_plain_table() -> None:
    draw = random.Random(0)
    for _ in range(500):
        left, right = drawn(draw), drawn(draw)
        assert edit_distance(left, right) == plain_edits(left, right)
    left, right = drawn(draw, 200), drawn(draw, 200)
    assert edit_distance(left, right) == plain_edits(left, right)


def test_error_rate_equals_jiwer() -> None:
    jiwer = pytest.importorskip("jiwer")
    draw = random.Random(1)
    pairs = [(" ".join(drawn(draw) or ["a"]), " ".join(drawn(draw))) for _ in range(60)]
    measure = WordErrorRate()
    sums = sum(measure.counts([found], right)[0] for right, found in pairs)
    assert float(measure.value(sums)) == pytest.approx(100 * jiwer.wer(*map(list, zip(*pairs, strict=True))))


def test_error_rate_may_go_by_normal_form() -> None:
    assert WordErrorRate().counts(["Mr. A"], "MISTER A").tolist() == [[1, 2]]
    assert WordErrorRate(NormalizerConfig()).counts(["Mr. A"], "MISTER A").tolist() == [[0, 2]]


def test_bleu_of_summed_counts_equals_sacrebleu() -> None:
    bleu = pytest.importorskip("sacrebleu.metrics.bleu")
    draw = random.Random(2)
    pairs = [(" ".join(drawn(draw, 12) or ["a"]), " ".join(drawn(draw, 12) or ["b"])) for _ in range(40)]
    right, found = map(list, zip(*pairs, strict=True))
    measure = Bleu()
    counts = np.stack([measure.counts([text], reference)[0] for reference, text in pairs])
    wanted = bleu.BLEU().corpus_score(found, [right]).score
    assert float(measure.value(counts.sum(axis=0))) == pytest.approx(wanted)
    assert measure.value(counts.reshape(4, 10, -1)).shape == (4, 10)
    assert "tok:13a" in measure.signature()
