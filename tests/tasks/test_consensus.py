"""CIDEr-D equals a case computed by hand, and prefers what the references say of this picture alone."""

import math

import pytest

from heddle.core import DataError
from heddle.tasks.metrics import consensus_scores

PICTURES = [["a red dog runs", "a red dog"], ["a cat sleeps", "the cat sleeps on a mat"]]


def test_a_case_computed_by_hand() -> None:
    # "a" stands with both pictures: it weighs log(2/2) = 0. All others weigh log 2. Candidate: "red dog".
    weight = math.log(2)
    first = math.exp(-4 / 72) * (  # against "a red dog runs", two words longer
        2 * weight**2 / (math.sqrt(2) * weight * math.sqrt(3) * weight)  # red, dog of red, dog, runs
        + weight**2 / (weight * math.sqrt(3) * weight)  # "red dog" of "a red", "red dog", "dog runs"
    )
    second = math.exp(-1 / 72) * (1 + 1 / math.sqrt(2))  # against "a red dog", one word longer
    found = consensus_scores(["Red dog!", "nothing at all"], PICTURES)
    assert found == pytest.approx([10 * (first + second) / (4 * 2), 0.0])


def test_a_caption_that_equals_its_references_scores_ten() -> None:
    same = [["two big dogs run fast", "two big dogs run fast"], ["one small cat sits still"]]
    assert consensus_scores(["two big dogs run fast", "one small cat sits still"], same) == pytest.approx([10, 10])


def test_words_of_another_picture_and_repetitions_gain_nothing() -> None:
    right, wrong, repeated = (
        consensus_scores([text, "a cat sleeps"], PICTURES)[0]
        for text in ("a red dog runs", "a cat sleeps", "red red red red")
    )
    assert right > 3
    assert wrong < 0.1
    assert repeated < consensus_scores(["red", "a cat sleeps"], PICTURES)[0]


def test_references_must_be_there() -> None:
    with pytest.raises(DataError, match="references: want 2, one list for each caption, found 1"):
        consensus_scores(["a", "b"], [["a"]])
    with pytest.raises(DataError, match="references: want one or more"):
        consensus_scores(["a"], [[]])
