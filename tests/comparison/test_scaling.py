"""Scaling laws: known constants are recovered, and the published fixture gives the published fit."""

import csv
from pathlib import Path

import numpy as np
import pytest

from heddle.comparison.statistics import (
    ScalingLaw,
    ScalingRun,
    bootstrap_fits,
    fit_huber,
    fit_projected,
    interval,
    optimum,
)
from heddle.core import UsageError

TRUE = ScalingLaw(E=1.2, A=60.0, B=250.0, alpha=0.32, beta=0.35)
FIXTURE = Path(__file__).parents[3] / "shared" / "data" / "scaling-chinchilla" / "svg_extracted_data.csv"


def grid(noise: float, seed: int = 0) -> list[ScalingRun]:
    """Return runs of five budgets and six sizes under the true law."""
    draw = np.random.default_rng(seed)
    runs = []
    for flops in (3e13, 1e14, 3e14, 1e15, 3e15):
        for factor in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0):
            size = factor * (flops / 60) ** 0.5
            tokens = flops / 6 / size
            runs.append(ScalingRun(size, tokens, float(TRUE.loss(size, tokens)) * float(np.exp(draw.normal(0, noise)))))
    return runs


@pytest.mark.parametrize("fit", [fit_huber, fit_projected])
def test_a_law_without_noise_is_recovered(fit: object) -> None:
    found = fit(grid(0.0)).law  # type: ignore[operator]
    for name in ("E", "A", "B", "alpha", "beta"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=2e-3)


def test_known_constants_lie_inside_their_intervals_and_a_larger_run_is_predicted() -> None:
    laws = bootstrap_fits(grid(0.002, seed=3), draws=60)
    assert all(inside(laws).values())
    size, tokens = 40e6, 149e6  # twelve times the largest budget
    predicted = np.median([float(law.loss(size, tokens)) for law in laws])
    assert predicted == pytest.approx(float(TRUE.loss(size, tokens)), rel=0.01)


def inside(laws: list[ScalingLaw]) -> dict[str, bool]:
    """Tell which of the true constants lie in their 95 % intervals."""
    found = {}
    for name in ("E", "alpha", "beta", "exponent"):
        low, high = interval([getattr(law, name) for law in laws], runs=30)
        found[name] = low <= getattr(TRUE, name) <= high
    return found


@pytest.mark.full
def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    covered = [value for seed in range(12) for value in inside(bootstrap_fits(grid(0.002, seed), 100)).values()]
    assert sum(covered) / len(covered) >= 0.85


def test_the_optimum_is_where_the_loss_is_lowest_at_its_budget() -> None:
    size, tokens = optimum(TRUE, 1e15)
    assert 6 * size * tokens == pytest.approx(1e15)
    sizes = size * np.geomspace(0.2, 5, 401)
    losses = TRUE.loss(sizes, 1e15 / 6 / sizes)
    assert sizes[np.argmin(losses)] == pytest.approx(size, rel=0.01)


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="want at least 6 runs, got 5"):
        fit_huber(grid(0.0)[:5])
    with pytest.raises(UsageError, match="finite numbers above 0"):
        fit_huber([*grid(0.0), ScalingRun(1e6, 1e6, float("nan"))])


@pytest.mark.skipif(not FIXTURE.exists(), reason="the fixture of published points is not there")
def test_the_points_of_chinchilla_give_the_published_refit() -> None:
    with FIXTURE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[5:]  # the published refit leaves out the five points of highest loss
    runs = []
    for row in rows:
        size, flops = float(row["Model Size"]), float(row["Training FLOP"])
        runs.append(ScalingRun(size, flops / 6 / size, float(row["loss"])))
    law = fit_huber(runs).law
    assert law.exponent == pytest.approx(0.514, abs=0.001)
    found = (law.A, law.B, law.E, law.alpha, law.beta)
    assert found == pytest.approx((477.5, 2143, 1.8172, 0.3473, 0.3672), rel=0.01)
    assert fit_projected(runs).law.exponent == pytest.approx(0.529, abs=0.002)
