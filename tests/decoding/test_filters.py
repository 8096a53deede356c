"""Filters leave exactly the tokens they should, with probabilities in the same proportions; samples follow them."""

import math

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, DamageError
from heddle.decoding import generation_config
from heddle.decoding.generation import GenerationConfig, GreedySearch, MultinomialSampling
from heddle.decoding.sampling import (
    NO_TOKEN,
    RowPosition,
    apply_temperature,
    hash_ids,
    inverse_cdf,
    min_p,
    top_k,
    top_p,
    typical,
    uniform,
)

PROBS = torch.tensor([0.05, 0.40, 0.10, 0.25, 0.15, 0.05], dtype=torch.float64)
SCORES = PROBS.log()
DRAWS = 20_000


def support(scores: Tensor) -> set[int]:
    return set(torch.nonzero(scores > -math.inf).flatten().tolist())


def chi_square(counts: Tensor, probs: Tensor) -> float:
    """Return Pearson's statistic over the tokens that may occur, in deviations of its distribution."""
    real = probs > 0
    assert counts[~real].sum() == 0, "a token without odds was drawn"
    expected = probs[real] * counts.sum()
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


# surprisals of ODDS in nats: 3.0, 0.92, 2.3, 1.39, 1.9, 3.0, of which 1.57 are expected
@pytest.mark.parametrize(
    ("mass", "kept"),
    [(0.1, {3}), (0.24, {3}), (0.26, {3, 4}), (0.5, {1, 3, 4}), (0.85, {1, 2, 3, 4}), (1.0, set(range(6)))],
)
def test_typical_keeps_the_fewest_whose_surprisal_is_nearest_the_expected(mass: float, kept: set[int]) -> None:
    assert support(typical(SCORES, mass)) == kept


def test_typical_may_leave_out_the_most_probable() -> None:
    assert 1 not in support(typical(SCORES, 0.2))


@pytest.mark.parametrize("seed", range(20))
def test_no_filter_leaves_nothing_even_after_others(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(8, 30, generator=rng, dtype=torch.float64) * 10 ** (seed % 4 - 1)
    scores[:, ::3] = -math.inf
    tiny = MultinomialSampling(temperature=0.3, top_k=1 + seed, top_p=1e-9, min_p=1.0, typical=1e-9)
    for choice in (
        tiny,
        MultinomialSampling(typical=1e-9),
        MultinomialSampling(top_p=1e-9),
        MultinomialSampling(min_p=1.0, typical=0.5),
    ):
        left = choice.filter_logits(scores)
        assert ((left > -math.inf).sum(-1) >= 1).all()
        assert (left[:, ::3] == -math.inf).all()
        assert not left.softmax(-1).isnan().any()


@pytest.mark.parametrize("seed", range(6))
def test_supports_are_those_of_hugging_face(seed: int) -> None:
    hf = pytest.importorskip("transformers")
    rng = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(16, 50, generator=rng, dtype=torch.float64)
    ids = torch.zeros(16, 1, dtype=torch.long)
    for value in (0.05, 0.3, 0.5, 0.9, 0.99):
        for ours, theirs in (
            (top_k(scores, int(50 * value) + 1), hf.TopKLogitsWarper(int(50 * value) + 1)),
            (top_p(scores, value), hf.TopPLogitsWarper(value)),
            (min_p(scores, value), hf.MinPLogitsWarper(value)),
            (typical(scores, value), hf.TypicalLogitsWarper(value)),
        ):
            assert torch.equal(ours, theirs(ids, scores)), f"{type(theirs).__name__} at {value}"


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 8.0])
def test_looking_among_few_tokens_first_changes_nothing(scale: float) -> None:
    rng = torch.Generator().manual_seed(0)
    scores = scale * torch.randn(3, 9000, generator=rng, dtype=torch.float64)
    level = (scores * 2).round() / 2  # many are level, so that ids must decide
    for rows in (scores, level):
        for p in (0.02, 0.5, 0.95):
            ranked, order = rows.sort(descending=True, stable=True)
            probs = ranked.softmax(-1)
            kept = probs.cumsum(-1) - probs < p
            wanted = torch.zeros_like(kept).scatter(-1, order, kept)
            assert torch.equal(top_p(rows, p) > -math.inf, wanted)


def test_temperature_raises_probabilities_to_a_power() -> None:
    for temperature in (0.5, 1.0, 2.0):
        wanted = PROBS ** (1 / temperature)
        assert torch.allclose(apply_temperature(SCORES, temperature).softmax(-1), wanted / wanted.sum())


@pytest.mark.parametrize("temperature", [1e-3, 1e-300, 5e-324, 1e300])
def test_no_temperature_is_too_low_or_too_high_to_draw_by(temperature: float) -> None:
    config = GenerationConfig(strategy=MultinomialSampling(temperature=temperature))
    for shift in (-1e4, 0.0, 1e4):
        rows = torch.tensor([[1.0, 3.0, 2.0], [-math.inf, 1.0, -math.inf]], dtype=torch.float64) + shift
        found = config.strategy.choose(rows, [RowPosition(0, 7, 7), RowPosition(0, 7, 7)]).tolist()
        assert found[1] == 1
        assert found[0] == 1 or (temperature > 1 and found[0] in (0, 2))


@pytest.mark.parametrize("cut", [lambda s: top_k(s, 3), lambda s: top_p(s, 0.7), lambda s: min_p(s, 0.3)])
def test_what_is_kept_keeps_its_proportions_in_every_row(cut) -> None:  # type: ignore[no-untyped-def]
    rows = torch.stack([SCORES, SCORES.flip(0)])
    found = cut(rows).softmax(-1)
    kept = torch.where(torch.tensor([0, 1, 0, 1, 1, 0]).bool(), PROBS, 0.0)
    wanted = kept / kept.sum()
    assert torch.allclose(found, torch.stack([wanted, wanted.flip(0)]))


@pytest.mark.parametrize(
    "choice",
    [
        MultinomialSampling(),
        MultinomialSampling(temperature=0.6),
        MultinomialSampling(top_k=3),
        MultinomialSampling(top_p=0.7),
        MultinomialSampling(min_p=0.2),
        MultinomialSampling(typical=0.5),
        MultinomialSampling(temperature=1.5, top_k=4, top_p=0.9, min_p=0.1, typical=0.95),
    ],
    ids=str,
)
def test_draws_follow_the_probabilities(choice: MultinomialSampling) -> None:
    probs = choice.filter_logits(SCORES).softmax(-1)
    places = [RowPosition(0, 1, past) for past in range(DRAWS)]
    found = choice.choose(SCORES.expand(DRAWS, -1), places)
    assert chi_square(torch.bincount(found, minlength=6).double(), probs) < 4


def test_the_chi_square_test_notices_wrong_probabilities() -> None:
    draws = torch.tensor([uniform(0, RowPosition(0, 1, past)) for past in range(DRAWS)], dtype=torch.float64)
    found = torch.bincount(inverse_cdf(PROBS.expand(DRAWS, -1), draws), minlength=6).double()
    wrong = PROBS + torch.tensor([0.01, -0.01, 0, 0, 0, 0])
    assert chi_square(found, PROBS) < 4 < chi_square(found, wrong)


def grown(ids: list[int], length: int, sample: int = 0, source: list[int] | None = None) -> list[RowPosition]:
    """Return where a row stands that goes on from ids with one id, over and over."""
    places = [RowPosition(sample, len(ids), hash_ids(ids, source))]
    while len(places) < length:
        places.append(places[-1].append(3))
    return places


@pytest.mark.parametrize(
    "rows",
    [
        [grown([5], 200, sample=sample) for sample in range(200)],
        [grown([prompt], 200) for prompt in range(200)],
        [grown([5], 200, source=[source]) for source in range(200)],
    ],
    ids=["samples", "prompts", "sources"],
)
def test_rows_and_positions_are_drawn_apart(rows: list[list[RowPosition]]) -> None:
    grid = torch.tensor([[uniform(0, place) for place in row] for row in rows])
    counts = torch.histc(grid, bins=20, min=0, max=1)
    assert chi_square(counts, torch.full((20,), 0.05)) < 4
    for way in (grid, grid.T):
        assert torch.corrcoef(way).fill_diagonal_(0).abs().max() < 0.4


def test_the_past_is_all_that_a_row_holds_however_it_came() -> None:
    place = RowPosition(0, 2, hash_ids([4, 7]))
    assert (
        place.append(1)
        == RowPosition(0, 3, hash_ids([4, 7, 1]))
        == RowPosition(0, 3, hash_ids(torch.tensor([4, 7, 1])))
    )  # type: ignore[arg-type]
    pasts = [hash_ids(*each) for each in (([4, 7], None), ([7, 4], None), ([47], None), ([7], [4]), ([4, 7], []))]
    assert len(set(pasts)) == len(pasts)


def test_a_draw_at_either_edge_takes_a_token_with_probabilities() -> None:
    probs = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64)
    assert inverse_cdf(probs, torch.tensor([0.0])).item() == 1
    assert inverse_cdf(probs, torch.tensor([1 - 2.0**-53], dtype=torch.float64)).item() == 3


def test_greedy_takes_the_first_of_equals() -> None:
    assert GreedySearch().choose(torch.tensor([[0.0, 2.0, 2.0]]), [RowPosition(0, 0, 0)]).item() == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_not_numbers_are_refused(temperature: float) -> None:
    for wrong in (math.nan, math.inf):
        with pytest.raises(DamageError, match="not numbers"):
            generation_config({"temperature": temperature}).strategy.choose(
                torch.tensor([[0.0, wrong]]), [RowPosition(0, 0, 0)]
            )


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
        ("typical", 0.0),
        ("typical", 1.1),
        ("seconds", 0.0),
        ("seconds", math.inf),
        ("min_tokens", -1),
        ("logprobs", -1),
        ("repetition", 0.0),
        ("presence", math.nan),
        ("frequency", math.inf),
        ("contrast", 1.1),
        ("beams", 0),
        ("samples", 0),
    ],
)
def test_a_option_out_of_bounds_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: want"):
        generation_config({field: value})  # type: ignore[misc]


def test_a_row_in_which_nothing_is_left_takes_nothing() -> None:
    scores = torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]])
    for config in (GenerationConfig(), GenerationConfig(strategy=MultinomialSampling(top_p=0.5, typical=0.5))):
        assert config.strategy.choose(scores, [RowPosition(0, 0, 0)] * 2)[1].item() == NO_TOKEN
