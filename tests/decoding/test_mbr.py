"""The least risk is the highest expected utility, by samples or by the probabilities of a list."""

import math
from collections.abc import Sequence

import pytest
from decoding.reference import END, find, model

from heddle.core import UsageError
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, generate
from heddle.decoding.search import BeamSearch, expected_utilities, token_f1
from heddle.decoding.search.mbr import Item, Utility

DRAWN = [(1, 2, 3), (1, 2, 4), (9, 9, 9), (1, 2, 3), (1, 5, 3)]


def least_risk(candidates: Sequence[Item], utility: Utility[Item], logprobs: Sequence[float] | None = None) -> Item:
    """Return the candidate of the highest expected utility, which leads."""
    return next(iter(expected_utilities(candidates, utility, logprobs)))


def test_the_candidate_that_is_most_like_the_others_wins() -> None:
    assert least_risk([(9, 9, 9), (1, 2, 3), (1, 2, 4), (1, 5, 3)], token_f1) == (1, 2, 3)


def test_expected_utilities_are_means_over_all_samples_by_hand() -> None:
    found = expected_utilities(DRAWN, token_f1)
    wanted = {item: sum(token_f1(item, truth) for truth in DRAWN) / len(DRAWN) for item in DRAWN}
    assert found == pytest.approx(wanted)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_whether_it_matches_is_a_utility_by_which_the_most_frequent_wins() -> None:
    assert least_risk(DRAWN, lambda a, b: float(a == b)) == (1, 2, 3)


def test_of_a_list_candidates_count_by_their_probabilities() -> None:
    items, probs = ["a", "b", "c"], [0.5, 0.3, 0.2]
    likeness = {("b", "c"): 0.9, ("c", "b"): 0.9}
    found = expected_utilities(
        items, lambda x, y: 1.0 if x == y else likeness.get((x, y), 0.0), [math.log(p) - 700 for p in probs]
    )
    assert found == pytest.approx({"a": 0.5, "b": 0.3 + 0.2 * 0.9, "c": 0.2 + 0.3 * 0.9})
    assert next(iter(found)) == "a"
    twice = expected_utilities(
        ["a", "a", "b"], lambda x, y: float(x == y), [math.log(0.5), math.log(0.5), math.log(0.5)]
    )
    assert twice == pytest.approx({"a": 0.5, "b": 0.5})  # a list names a sequence once


def test_of_equals_the_first_leads_and_one_alone_is_chosen() -> None:
    assert least_risk(["x", "y"], lambda a, b: 1.0) == "x"
    assert least_risk([()], token_f1) == ()


def test_overlap_is_the_f1_of_bags() -> None:
    assert token_f1([1, 1, 2], [1, 2, 2]) == pytest.approx(2 / 3)
    assert token_f1([1, 2], []) == 0.0 and token_f1([], []) == 1.0
    assert token_f1([1, 2, 3], [3, 2, 1]) == 1.0


def test_samples_and_beams_of_a_model_can_be_chosen_from() -> None:
    made = model("pair-attention", 3, vocab=12)
    draw = GenerationConfig(
        max_tokens=5, stop=(END,), begin=END, samples=16, strategy=MultinomialSampling(temperature=1.0, seed=3)
    )
    drawn = [tuple(ids) for ids in generate(made, [[]], draw, [[1, 2, 3, END]])]
    assert least_risk(drawn, token_f1) in drawn
    gain = {one: sum(token_f1(one, other) for other in drawn) for one in drawn}
    assert len(set(drawn)) > 1 and gain[least_risk(drawn, token_f1)] == pytest.approx(max(gain.values()))
    (beams,) = find(
        made, GenerationConfig(max_tokens=5, stop=(END,), begin=END, samples=4, strategy=BeamSearch(beams=4)), [0]
    )
    ids, logprobs = [tuple(h.ids) for h in beams], [h.logprob for h in beams]
    assert least_risk(ids, lambda a, b: float(a == b), logprobs) == ids[0]


def test_what_cannot_be_chosen_from_is_refused() -> None:
    with pytest.raises(UsageError, match="mbr: want one candidate or more"):
        least_risk([], token_f1)
    with pytest.raises(UsageError, match="logprobs: want 2, one for each candidate, got 1"):
        least_risk(["a", "b"], token_f1, [0.0])
    with pytest.raises(UsageError, match="logprobs: want numbers"):
        least_risk(["a"], token_f1, [float("nan")])
