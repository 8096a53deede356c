"""Agreement of a comparison with a published one: rank correlations (Spearman, Kendall), and signs of decided effects.

Intervals are by bootstrap (Efron 1979) over variants, which are a sample of all that could have been tried, and over
seeds, which are common to all variants.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle.comparison.statistics.paired import ALPHA, Losses, holm, scipy_module
from heddle.core import UsageError

MIN_VARIANTS = 3  # variants of which an order says anything
Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Agreement:
    """How two orders of the same variants agree: rank correlations with bootstrap intervals over variants and seeds."""

    variants: int
    spearman: float
    spearman_interval: Interval
    kendall: float
    kendall_interval: Interval


def rank_agreement(ours: Losses, theirs: Mapping[str, float], draws: int = 2000, seed: int = 0) -> Agreement:
    """Return the agreement over the variants that both have; failed ones (NaN or infinite) rank last."""
    names = sorted(set(ours) & set(theirs))
    if len(names) < MIN_VARIANTS:
        raise UsageError(f"rank agreement needs three variants that both have, found {len(names)}")
    runs, right = _table(ours, names), np.array([_or_last(theirs[name]) for name in names])
    random, spearman, kendall = np.random.default_rng(seed), [], []
    for _ in range(draws):
        seeds = np.asarray(random.integers(runs.shape[1], size=runs.shape[1]), np.int64)
        pick = random.integers(len(names), size=len(names))
        if len(set(pick.tolist())) >= MIN_VARIANTS:
            left = _means(runs, seeds)[pick]
            spearman.append(_spearman(left, right[pick]))
            kendall.append(_kendall(left, right[pick]))
    means = _means(runs, np.arange(runs.shape[1]))
    return Agreement(
        len(names),
        _spearman(means, right),
        _percentiles(spearman),
        _kendall(means, right),
        _percentiles(kendall),
    )


def _table(losses: Losses, names: list[str]) -> Floats:
    """Return losses by variant and seed; NaN where a variant lacks a seed."""
    seeds = sorted({seed for name in names for seed in losses[name]})
    table = np.full((len(names), len(seeds)), math.nan)
    for row, name in enumerate(names):
        for seed, loss in losses[name].items():
            table[row, seeds.index(seed)] = _or_last(loss)
    return table


def _or_last(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _means(table: Floats, seeds: NDArray[np.int64]) -> Floats:
    """Return each variant's mean over these seeds, or over all of its own where it has none of them."""
    drawn = table[:, seeds]
    drawn = np.where(np.isnan(drawn).all(axis=1, keepdims=True), table, drawn)
    return np.asarray(np.nanmean(drawn, axis=1), np.float64)


def _spearman(left: Floats, right: Floats) -> float:
    ranks = [scipy_module("stats").rankdata(side) for side in (left, right)]
    if min(float(np.ptp(side)) for side in ranks) == 0:
        return math.nan
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _kendall(left: Floats, right: Floats) -> float:
    """Return tau-b: pairs in the same order less pairs in opposite order, with ties counted for neither."""
    signs = [np.greater.outer(side, side).astype(float) - np.less.outer(side, side) for side in (left, right)]
    norm = math.sqrt(float(np.abs(signs[0]).sum()) * float(np.abs(signs[1]).sum()))
    return float((signs[0] * signs[1]).sum()) / norm if norm else math.nan


def _percentiles(values: list[float]) -> Interval:
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


# --- signs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignAgreement:
    """Of the variants whose effect a publication decides: how many of ours have the same sign."""

    decided: int
    same: int
    interval: Interval  # 95 %, of the share
    opposite: tuple[str, ...]  # those whose sign is not the same


def decided_signs(
    published: Mapping[str, tuple[float, float]], base: str, runs: int, alpha: float = ALPHA
) -> dict[str, int]:
    """Return the sign of each effect that means and deviations of so many runs decide: Welch's test, Holm's correction.

    Lower is better: -1 is a variant with a lower loss than the base.
    """
    mean, deviation = published[base]
    names = [name for name in published if name != base]
    chances = [_welch(published[name], (mean, deviation), runs) for name in names]
    corrected = dict(zip(names, holm(chances), strict=True))
    return {name: int(math.copysign(1, published[name][0] - mean)) for name in names if corrected[name] <= alpha}


def _welch(one: tuple[float, float], other: tuple[float, float], runs: int) -> float:
    parts = [side[1] ** 2 / runs for side in (one, other)]
    if not sum(parts):
        return 1.0 if one[0] == other[0] else 0.0
    freedom = sum(parts) ** 2 / sum(part**2 / (runs - 1) for part in parts)
    statistic = abs(one[0] - other[0]) / math.sqrt(sum(parts))
    return 2 * float(scipy_module("special").stdtr(freedom, -statistic))


def sign_agreement(effects: Mapping[str, float], signs: Mapping[str, int]) -> SignAgreement | None:
    """Return how many effects have the decided sign; a failed variant (NaN) counts as worse. None: there are none."""
    names = [name for name in signs if name in effects]
    if not names:
        return None
    opposite = tuple(name for name in names if (effects[name] < 0) != (signs[name] < 0))
    same = len(names) - len(opposite)
    return SignAgreement(len(names), same, _wilson(same, len(names)), opposite)


def _wilson(hits: int, count: int) -> Interval:
    """Return Wilson's 95 % interval of a share."""
    z = 1.959964
    middle = (hits + z * z / 2) / (count + z * z)
    reach = z * math.sqrt(hits * (count - hits) / count + z * z / 4) / (count + z * z)
    return middle - reach, middle + reach
