"""Statistics: known answers, and simulated suites whose true differences are known."""

import math
from functools import cache

import numpy as np
import pytest
import scipy.stats

from heddle.comparison.statistics import Verdict, compare_to_base, detectable_effect, holm, power, rank_agreement
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
    assert found["noisy"].wild and found["noisy"].verdict is Verdict.UNDECIDED
    assert found["v10"].verdict is Verdict.WORSE and not found["v10"].wild


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
    ours = {f"v{i}": float(i) for i in range(12)}
    same, opposite = rank_agreement(ours, ours, 200), rank_agreement(ours, {k: -v for k, v in ours.items()}, 200)
    assert (same.spearman, same.kendall) == pytest.approx((1.0, 1.0))
    assert (opposite.spearman, opposite.kendall) == pytest.approx((-1.0, -1.0))
    mixed = rank_agreement(ours, {k: (v * 5) % 12 for k, v in ours.items()}, 200)
    assert mixed.spearman_interval[0] < mixed.spearman < mixed.spearman_interval[1]
    assert mixed.spearman == pytest.approx(
        scipy.stats.spearmanr(range(12), [(i * 5) % 12 for i in range(12)]).statistic
    )


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
