"""Metrics against the field's libraries where they are installed, and against values worked out by hand."""

import importlib.util
import random

import numpy as np
import pytest

from heddle.core.metrics import (
    accuracy,
    answer_f1,
    entities,
    entity_f1,
    exact_match,
    macro_f1,
    multi_label_f1,
    pearson,
    spearman,
)


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def test_accuracy_and_f1() -> None:
    found, gold = list("aabbc"), list("abbbb")
    assert accuracy(found, gold) == pytest.approx(3 / 5)
    # a: 1 right of 2 predicted and 1 wanted; b: 2 of 2 and 4; c: none of 1 and 0
    assert macro_f1(found, gold) == pytest.approx((2 / 3 + 4 / 6 + 0) / 3)
    mine, theirs = np.array([[1, 0, 1], [1, 1, 0]], bool), np.array([[1, 0, 0], [1, 0, 0]], bool)
    assert multi_label_f1(mine, theirs) == pytest.approx((4 / 6, (1 + 0 + 0) / 3))


def test_correlation_with_ties() -> None:
    # ranks 1, 2.5, 2.5, 4 against 1, 3, 2, 4
    assert spearman([1, 2, 2, 9], [10, 30, 20, 40]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1) and spearman([1, 1], [1, 2]) == 0.0
    assert pearson([0, 1, 2], [1, 3, 5]) == pytest.approx(1)


ENTITIES = {
    "O B-A I-A O": [("A", 1, 3)],
    "I-A I-A B-A": [("A", 0, 2), ("A", 2, 3)],  # IOB1
    "B-A I-B": [("A", 0, 1), ("B", 1, 2)],  # another type begins another entity
    "B-A E-A S-B O": [("A", 0, 2), ("B", 2, 3)],  # IOBES
    "S-A I-A": [("A", 0, 1), ("A", 1, 2)],
    "O O": [],
    "I-A": [("A", 0, 1)],
}


@pytest.mark.parametrize("tags", ENTITIES)
def test_entities(tags: str) -> None:
    assert entities(tags.split()) == ENTITIES[tags]


def test_f1_over_entities() -> None:
    score = entity_f1([["B-A", "I-A", "O"], ["B-B"]], [["B-A", "O", "O"], ["B-B"]])
    assert (score.precision, score.recall, score.f1) == (0.5, 0.5, 0.5)


@pytest.mark.skipif(not has("seqeval"), reason="needs seqeval")
def test_entities_as_seqeval_counts_them() -> None:
    from seqeval.metrics import f1_score  # type: ignore[import-not-found]

    draw = random.Random(0)
    tags = [f"{mark}-{kind}" for mark in "BIES" for kind in ("A", "B-c")] + ["O"]
    mine, gold = ([draw.choices(tags, k=draw.randint(1, 9)) for _ in range(300)] for _ in range(2))
    assert entity_f1(mine, gold).f1 == pytest.approx(f1_score(gold, mine), abs=1e-12)


@pytest.mark.skipif(not has("scipy"), reason="needs scipy")
def test_correlation_as_scipy_has_it() -> None:
    from scipy.stats import spearmanr  # type: ignore[import-not-found]

    draw = np.random.default_rng(0)
    a, b = draw.integers(9, size=200).tolist(), draw.integers(9, size=200).tolist()
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)


def test_answers_after_normalization() -> None:
    assert (
        exact_match("The  Cat!", ["a cat", "dog"]) == 1.0 and exact_match("", []) == 1.0 and exact_match("x", []) == 0.0
    )
    assert answer_f1("the big cat", ["cat", "big dog"]) == pytest.approx(2 / 3)
    assert answer_f1("", ["cat"]) == 0.0
