"""Filters leave exactly the tokens they should, with odds in the same proportions; draws follow the odds."""

import math

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, DamageError
from heddle.decoding import How
from heddle.decoding.filters import min_p, temper, top_k, top_p
from heddle.decoding.sampling import choose, draw, invert, narrow

ODDS = torch.tensor([0.05, 0.40, 0.10, 0.25, 0.15, 0.05], dtype=torch.float64)
SCORES = ODDS.log()
DRAWS = 20_000


def support(scores: Tensor) -> set[int]:
    return set(torch.nonzero(scores > -math.inf).flatten().tolist())


def chi_square(counts: Tensor, odds: Tensor) -> float:
    """Return Pearson's statistic over the tokens that may occur, in deviations of its distribution."""
    real = odds > 0
    assert counts[~real].sum() == 0, "a token without odds was drawn"
    expected = odds[real] * counts.sum()
    statistic = ((counts[real] - expected) ** 2 / expected).sum().item()
    freedom = int(real.sum()) - 1
    return (statistic - freedom) / math.sqrt(2 * max(1, freedom))


@pytest.mark.parametrize(
    ("k", "kept"), [(1, {1}), (2, {1, 3}), (4, {1, 2, 3, 4}), (6, set(range(6))), (9, set(range(6)))]
)
def test_top_k_keeps_the_k_best(k: int, kept: set[int]) -> None:
    assert support(top_k(SCORES, k)) == kept


def test_top_k_keeps_those_level_with_the_last() -> None:
    assert support(top_k(SCORES, 5)) == set(range(6))


@pytest.mark.parametrize(
    ("p", "kept"), [(0.01, {1}), (0.4, {1}), (0.41, {1, 3}), (0.65, {1, 3}), (0.7, {1, 3, 4}), (1.0, set(range(6)))]
)
def test_top_p_keeps_the_fewest_that_reach_the_mass(p: float, kept: set[int]) -> None:
    assert support(top_p(SCORES, p)) == kept


@pytest.mark.parametrize(("p", "kept"), [(0.0, set(range(6))), (0.3, {1, 3, 4}), (0.62, {1, 3}), (1.0, {1})])
def test_min_p_keeps_what_comes_near_the_best(p: float, kept: set[int]) -> None:
    assert support(min_p(SCORES, p)) == kept


def test_temperature_raises_odds_to_a_power() -> None:
    for temperature in (0.5, 1.0, 2.0):
        wanted = ODDS ** (1 / temperature)
        assert torch.allclose(temper(SCORES, temperature).softmax(-1), wanted / wanted.sum())


@pytest.mark.parametrize("cut", [lambda s: top_k(s, 3), lambda s: top_p(s, 0.7), lambda s: min_p(s, 0.3)])
def test_what_is_kept_keeps_its_proportions_in_every_row(cut) -> None:  # type: ignore[no-untyped-def]
    rows = torch.stack([SCORES, SCORES.flip(0)])
    found = cut(rows).softmax(-1)
    kept = torch.where(torch.tensor([0, 1, 0, 1, 1, 0]).bool(), ODDS, 0.0)
    wanted = kept / kept.sum()
    assert torch.allclose(found, torch.stack([wanted, wanted.flip(0)]))


@pytest.mark.parametrize(
    "how",
    [
        How(temperature=1.0),
        How(temperature=0.6),
        How(temperature=1.0, top_k=3),
        How(temperature=1.0, top_p=0.7),
        How(temperature=1.0, min_p=0.2),
        How(temperature=1.5, top_k=4, top_p=0.9, min_p=0.1),
    ],
    ids=str,
)
def test_draws_follow_the_odds(how: How) -> None:
    odds = narrow(SCORES, how).softmax(-1)
    places = [(0, position) for position in range(DRAWS)]
    found = choose(SCORES.expand(DRAWS, -1), how, places)
    assert chi_square(torch.bincount(found, minlength=6).double(), odds) < 4


def test_the_chi_square_test_notices_wrong_odds() -> None:
    draws = torch.tensor([draw(0, 0, position) for position in range(DRAWS)], dtype=torch.float64)
    found = torch.bincount(invert(ODDS.expand(DRAWS, -1), draws), minlength=6).double()
    wrong = ODDS + torch.tensor([0.01, -0.01, 0, 0, 0, 0])
    assert chi_square(found, ODDS) < 4 < chi_square(found, wrong)


def test_samples_and_positions_are_drawn_apart() -> None:
    grid = torch.tensor([[draw(0, sample, position) for position in range(200)] for sample in range(200)])
    counts = torch.histc(grid, bins=20, min=0, max=1)
    assert chi_square(counts, torch.full((20,), 0.05)) < 4
    assert torch.corrcoef(grid).fill_diagonal_(0).abs().max() < 0.4


def test_a_draw_at_either_edge_takes_a_token_with_odds() -> None:
    odds = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64)
    assert invert(odds, torch.tensor([0.0])).item() == 1
    assert invert(odds, torch.tensor([1 - 2.0**-53], dtype=torch.float64)).item() == 3


def test_greedy_takes_the_first_of_equals() -> None:
    assert choose(torch.tensor([[0.0, 2.0, 2.0]]), How(), [(0, 0)]).item() == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_not_numbers_are_refused(temperature: float) -> None:
    with pytest.raises(DamageError, match="not numbers"):
        choose(torch.tensor([[0.0, float("nan")]]), How(temperature=temperature), [(0, 0)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("samples", 0),
    ],
)
def test_a_wish_out_of_bounds_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: want"):
        How(**{field: value})
