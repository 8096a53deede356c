"""Statistics: known answers, and simulated suites whose true differences are known."""

import math
from functools import cache

import numpy as np
import pytest
import scipy.stats

from heddle.comparison.statistics import (
    Verdict,
    compare_to_base,
    decided_signs,
    detectable_effect,
    holm,
    power,
    rank_agreement,
    sign_agreement,
)
from heddle.comparison.suites import SUITES
from heddle.core import UsageError

SEEDS, VARIANTS, NOISE, LUCK = 3, 12, 0.0011, 0.003  # deviations of one run, and of what a seed does to all


def suite(effects: list[float], number: int, noise: float = NOISE) -> dict[str, dict[int, float]]:
    """Return losses of a base and of variants with these effects on log loss."""
    draw = np.random.default_rng(number)
    luck = draw.normal(0, LUCK, SEEDS)
    logs = np.array([0.0, *effects])[:, None] + luck + draw.normal(0, noise, (len(effects) + 1, SEEDS))
    names = ["base", *(f"v{i}" for i in range(len(effects)))]
    return {n: dict(enumerate((3 * np.exp(row)).tolist())) for n, row in zip(names, logs, strict=True)}


@cache
def verdicts(effect: float, suites: int, first: int) -> list[list[Verdict]]:
    """Return the verdicts of many suites in which the first variant has an effect and the others have none."""
    effects = [effect] + [0.0] * (VARIANTS - 1)
    return [
        [one.verdict for one in compare_to_base(suite(effects, first + number), "base")[0]] for number in range(suites)
    ]


FLAGGED = (Verdict.BETTER, Verdict.WORSE)


def test_2000_suites_without_differences_raise_few_false_alarms() -> None:
    alarms = sum(any(v in FLAGGED for v in row) for row in verdicts(0.0, 2000, 0))
    assert alarms / 2000 <= 0.06


def test_a_planted_effect_is_found_as_often_as_predicted() -> None:
    effect = detectable_effect(NOISE, SEEDS, VARIANTS)
    assert power(effect, NOISE, SEEDS, VARIANTS) == pytest.approx(0.8, abs=1e-6)
    found = sum(row[0] is Verdict.WORSE for row in verdicts(effect, 1000, 50_000))
    assert found / 1000 == pytest.approx(0.8, abs=0.05)
    false = sum(any(v in FLAGGED for v in row[1:]) for row in verdicts(effect, 1000, 50_000))
    assert false / 1000 <= 0.06


def test_equivalence_is_said_of_equal_variants_and_rarely_at_the_margin() -> None:
    equal = [v for row in verdicts(0.0, 2000, 0) for v in row]
    assert sum(v is Verdict.EQUIVALENT for v in equal) / len(equal) > 0.95
    effects = [0.005] * VARIANTS  # at the margin itself: 5 % errors at most
    wrong = [one.p_equivalence <= 0.05 for n in range(200) for one in compare_to_base(suite(effects, n), "base")[0]]
    assert sum(wrong) / len(wrong) <= 0.07


def test_a_noisy_variant_keeps_its_own_deviation_and_does_not_blunt_the_others() -> None:
    losses = suite([0.0] * 10 + [0.01], 1)
    losses["noisy"] = {seed: loss * math.exp(0.3 * (-1) ** seed) for seed, loss in losses["base"].items()}
    found = {one.variant: one for one in compare_to_base(losses, "base")[0]}
    assert found["noisy"].own_variance and found["noisy"].verdict is Verdict.UNDECIDED
    assert found["v10"].verdict is Verdict.WORSE and not found["v10"].own_variance


def test_failed_runs_are_rows_and_never_dropped() -> None:
    losses = suite([0.0, 0.0, 0.0], 3)
    losses["v1"][1] = math.nan
    found = {one.variant: one for one in compare_to_base(losses, "base")[0]}
    assert found["v1"].verdict is Verdict.FAILED and found["v1"].failures == 1
    assert len(found) == 3
    losses["base"][0] = math.inf
    with pytest.raises(UsageError, match="a run of the base"):
        compare_to_base(losses, "base")


def test_one_seed_decides_nothing() -> None:
    one_seed = {name: {0: runs[0]} for name, runs in suite([0.5, 0.0], 4).items()}
    assert {one.verdict for one in compare_to_base(one_seed, "base")[0]} == {Verdict.UNDECIDED}


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_two_variants_are_students_paired_test() -> None:
    left, right = [2.0, 2.1, 2.3, 2.2], [2.1, 2.15, 2.5, 2.25]
    (one,), noise = compare_to_base({"a": dict(enumerate(left)), "b": dict(enumerate(right))}, "a")
    want = scipy.stats.ttest_rel(np.log(right), np.log(left))
    assert one.p == pytest.approx(want.pvalue)
    assert one.interval == pytest.approx(tuple(want.confidence_interval()))
    assert noise.freedom == 3


def test_the_smallest_effect_of_narangs_table_is_as_planned() -> None:
    paired = 0.00153  # deviation of a paired difference, measured in our speed-run ablation
    found = [detectable_effect(paired / math.sqrt(2), seeds, 51) for seeds in (3, 5, 8)]
    assert found == pytest.approx([0.0037, 0.0029, 0.0023], rel=0.03)


def test_rank_agreement_of_equal_and_reversed_orders() -> None:
    order = {f"v{i}": float(i) for i in range(12)}
    ours = {name: {0: rank, 1: rank + 0.1} for name, rank in order.items()}
    same, opposite = rank_agreement(ours, order, 200), rank_agreement(ours, {k: -v for k, v in order.items()}, 200)
    assert (same.spearman, same.kendall) == pytest.approx((1.0, 1.0))
    assert (opposite.spearman, opposite.kendall) == pytest.approx((-1.0, -1.0))
    mixed = rank_agreement(ours, {k: (v * 5) % 12 for k, v in order.items()}, 200)
    assert mixed.spearman_interval[0] < mixed.spearman < mixed.spearman_interval[1]
    assert mixed.spearman == pytest.approx(
        scipy.stats.spearmanr(range(12), [(i * 5) % 12 for i in range(12)]).statistic
    )


def test_kendalls_tau_counts_ties_as_scipy_does_and_failed_variants_rank_last() -> None:
    theirs = {f"v{i}": float(value) for i, value in enumerate([1, 2, 2, 4, 5, 5, 7, 8])}
    ours = {f"v{i}": {0: float(value)} for i, value in enumerate([2, 1, 3, 3, 6, 5, 9, math.nan])}
    found = rank_agreement(ours, theirs, 50)
    want = scipy.stats.kendalltau([2, 1, 3, 3, 6, 5, 9, 99], list(theirs.values())).statistic
    assert found.kendall == pytest.approx(want) and found.variants == 8


def test_noisy_seeds_widen_the_interval_of_an_agreement() -> None:
    draw = np.random.default_rng(0)
    theirs = {f"v{i}": float(i) for i in range(20)}
    quiet = {name: {seed: rank for seed in range(3)} for name, rank in theirs.items()}
    noisy = {name: {seed: rank + draw.normal(0, 12) for seed in range(3)} for name, rank in theirs.items()}
    low, high = rank_agreement(noisy, theirs, 400).spearman_interval
    assert rank_agreement(quiet, theirs, 400).spearman_interval == pytest.approx((1.0, 1.0))
    assert high - low > 0.2


def test_narangs_paper_decides_thirty_two_rows_and_its_own_orders_agree_as_computed_elsewhere() -> None:
    paper = SUITES["narang"]().paper
    early, final = paper["early loss"], paper["final loss"]
    signs = decided_signs({n: (f.loss, f.deviation or 0.0) for n, f in early.items()}, "vanilla-transformer", 5)
    assert len(signs) == 32 and sum(sign < 0 for sign in signs.values()) == 7
    found = rank_agreement({n: {0: f.loss} for n, f in final.items()}, {n: f.loss for n, f in early.items()})
    assert found.spearman == pytest.approx(0.949, abs=0.001)
    assert found.spearman_interval == pytest.approx((0.87, 0.98), abs=0.01)
    near = {n: f for n, f in final.items() if abs(f.loss - final["vanilla-transformer"].loss) <= 0.03}
    close = rank_agreement({n: {0: f.loss} for n, f in near.items()}, {n: early[n].loss for n in near}, 50)
    assert close.variants == 22 and close.spearman == pytest.approx(0.67, abs=0.005)


def test_signs_that_are_not_the_published_ones_are_named() -> None:
    found = sign_agreement({"a": -0.1, "b": 0.2, "c": math.nan, "d": 0.1}, {"a": -1, "b": -1, "c": 1})
    assert found is not None and (found.decided, found.same, found.opposite) == (3, 2, ("b",))
    assert found.interval[0] < 2 / 3 < found.interval[1]
    assert sign_agreement({"a": 1.0}, {}) is None


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Of all variants of 400 suites of three seeds, a wide one among them, and of two seeds and two variants."""
    inside = total = 0
    effects = [0.004, -0.002, 0.0, 0.01, 0.001, -0.006]
    for number in range(400):
        for one, truth in zip(compare_to_base(suite(effects, number), "base")[0], effects, strict=True):
            inside += one.interval[0] <= truth <= one.interval[1]
            total += 1
    assert inside / total == pytest.approx(0.95, abs=0.015)
    pairs = [compare_to_base(suite([0.003], 10_000 + number), "base")[0][0] for number in range(800)]
    assert sum(one.interval[0] <= 0.003 <= one.interval[1] for one in pairs) / 800 == pytest.approx(0.95, abs=0.025)
