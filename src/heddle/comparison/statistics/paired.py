"""Statistics of a comparison: pairing by seed, pooled deviation, Holm's correction, equivalence, power.

Losses are compared as logarithms, so an effect is a ratio: -0.01 is a loss lower by 1 %. Runs with the same seed read
the same data in the same order, so a seed's own luck is common to all variants and cancels. What remains is the
residual of variant + seed, and its deviation is pooled over variants: with three seeds, two numbers say little about
one variant's noise, but a hundred say much about everybody's. A variant that is far noisier than the rest keeps its
own deviation, and stays out of the pool.
"""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.core import MissingExtra, UsageError

ALPHA = 0.05  # of false alarms over the whole family of variants
MARGIN = 0.005  # effects within it count as none: the equivalence margin, as a share of the loss
NOISIER = 0.01  # level at which a variant counts as noisier than the rest, after Holm's correction
Floats = NDArray[np.float64]


def scipy_module(name: str) -> Any:
    """Import a module of scipy, or say which extra has it."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ModuleNotFoundError:
        raise MissingExtra("scipy", "compare", "comparing runs") from None


class Verdict(StrEnum):
    """What the runs say of a variant against its base."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"
    FAILED = "failed"  # a run diverged or crashed: its seeds are counted, never dropped


@dataclass(frozen=True)
class Noise:
    """The deviation of one run's log loss, beyond what its variant and its seed explain."""

    deviation: float
    freedom: int  # degrees of freedom of the estimate
    levene: float  # p-value of equal deviations (Brown & Forsythe's form of Levene's test); NaN: too few runs


@dataclass(frozen=True)
class Comparison:
    """One variant against its base; effects are differences of log loss, negative where the variant is better."""

    variant: str
    verdict: Verdict
    seeds: int
    effect: float
    interval: tuple[float, float]  # 95 %, of this variant alone
    p: float
    p_holm: float  # corrected for the number of variants
    p_equivalence: float  # of an effect outside the margin
    own_variance: bool  # judged by its own deviation, not by the pooled one
    failures: int = 0


Losses = Mapping[str, Mapping[int, float]]  # variant -> seed -> loss; NaN or infinite: the run failed


def compare_to_base(
    losses: Losses, base: str, alpha: float = ALPHA, margin: float = MARGIN
) -> tuple[list[Comparison], Noise]:
    """Judge every variant against the base, with Holm's correction over all of them."""
    if base not in losses:
        raise UsageError(f"no runs of the base {base!r}; want one of {', '.join(losses)}")
    logs = {name: _logs(runs) for name, runs in losses.items()}
    if any(not math.isfinite(value) for value in logs[base].values()):
        raise UsageError(f"a run of the base {base!r} failed, so nothing can be compared with it")
    whole = {name: runs for name, runs in logs.items() if _complete(runs, logs[base])}
    noisier = _noisier_variants(whole, base)
    noise = pooled_noise({name: runs for name, runs in whole.items() if name not in noisier})
    raw = [
        _compare(name, runs, logs[base], noise, name in noisier, margin) for name, runs in logs.items() if name != base
    ]
    corrected = holm([one.p for one in raw])
    return [_with_verdict(one, p, alpha) for one, p in zip(raw, corrected, strict=True)], noise


def _logs(runs: Mapping[int, float]) -> dict[int, float]:
    return {seed: math.log(loss) if 0 < loss < math.inf else math.nan for seed, loss in runs.items()}


def _complete(runs: Mapping[int, float], base: Mapping[int, float]) -> bool:
    """Tell whether a variant has every seed of the base, so that the table of residuals has no holes."""
    return set(base) <= set(runs) and all(math.isfinite(runs[seed]) for seed in base)


def _table(logs: Mapping[str, Mapping[int, float]]) -> Floats:
    """Return log losses by variant and seed; the seeds are those that all have."""
    seeds = sorted(set.intersection(*(set(runs) for runs in logs.values())))
    return np.array([[runs[seed] for seed in seeds] for runs in logs.values()], np.float64)


def _residuals(table: Floats) -> Floats:
    """Return what neither the variant nor the seed explains."""
    by_variant = table - table.mean(axis=1, keepdims=True)
    return np.asarray(by_variant - by_variant.mean(axis=0, keepdims=True), np.float64)


def pooled_noise(logs: Mapping[str, Mapping[int, float]]) -> Noise:
    """Return the deviation of a run, pooled over variants: the residuals of variant + seed."""
    table = _table(logs)
    variants, seeds = table.shape
    freedom = (variants - 1) * (seeds - 1)
    if freedom < 1:
        return Noise(math.nan, 0, math.nan)
    residuals = _residuals(table)
    deviation = math.sqrt(float((residuals**2).sum()) / freedom)
    return Noise(deviation, freedom, _levene(residuals) if seeds > 2 and deviation else math.nan)


def _levene(groups: Floats) -> float:
    """Return the p-value of equal deviations: an analysis of variance of the distances from each median."""
    distances = np.abs(groups - np.median(groups, axis=1, keepdims=True))
    variants, seeds = groups.shape
    between = seeds * ((distances.mean(axis=1) - distances.mean()) ** 2).sum() / (variants - 1)
    within = ((distances - distances.mean(axis=1, keepdims=True)) ** 2).sum() / (variants * (seeds - 1))
    return float(scipy_module("special").fdtrc(variants - 1, variants * (seeds - 1), between / max(within, 1e-300)))


def _noisier_variants(logs: Mapping[str, Mapping[int, float]], base: str) -> set[str]:
    """Return the variants that are noisier than all the others together, the noisiest first, one at a time."""
    noisier: set[str] = set()
    left = dict(logs)
    while len(left) > 3 and (table := _table(left)).shape[1] > 1:
        variants, seeds = table.shape
        squares = (_residuals(table) ** 2).sum(axis=1)
        # one row's residuals hold (variants - 1) / variants of its own variance
        ratios = squares * variants / (variants - 1) / np.maximum(squares.sum() - squares, 1e-300) * (variants - 2)
        p = scipy_module("special").fdtrc(seeds - 1, (variants - 2) * (seeds - 1), ratios) * variants
        chances = {name: float(chance) for name, chance in zip(left, p, strict=True) if name != base}
        noisiest = min(chances, key=lambda name: chances[name])
        if chances[noisiest] >= NOISIER:
            break
        noisier.add(noisiest)
        del left[noisiest]
    return noisier


def _compare(
    name: str, runs: Mapping[int, float], base: Mapping[int, float], noise: Noise, noisier: bool, margin: float
) -> Comparison:
    """Compare a variant with the base by the seeds that both have."""
    seeds = sorted(set(runs) & set(base))
    differences = np.array([runs[seed] - base[seed] for seed in seeds], np.float64)
    failures = sum(not math.isfinite(value) for value in runs.values())
    if failures or not seeds:
        verdict = Verdict.FAILED if failures else Verdict.UNDECIDED
        return Comparison(name, verdict, len(seeds), math.nan, (math.nan, math.nan), 1.0, 1.0, 1.0, noisier, failures)
    effect, count = float(differences.mean()), len(seeds)
    if noisier or not noise.freedom:
        freedom = count - 1
        error = float(differences.std(ddof=1)) / math.sqrt(count) if freedom else math.nan
    else:
        freedom, error = noise.freedom, noise.deviation * math.sqrt(2 / count)
    if not freedom:
        return Comparison(name, Verdict.UNDECIDED, count, effect, (-math.inf, math.inf), 1.0, 1.0, 1.0, noisier)
    special, error = scipy_module("special"), max(error, 1e-300)
    reach = float(special.stdtrit(freedom, 0.975)) * error
    p = 2 * float(special.stdtr(freedom, -abs(effect) / error))
    outside = float(special.stdtr(freedom, (abs(effect) - margin) / error))  # of two one-sided tests (TOST)
    return Comparison(name, Verdict.UNDECIDED, count, effect, (effect - reach, effect + reach), p, p, outside, noisier)


def _with_verdict(one: Comparison, p_holm: float, alpha: float) -> Comparison:
    verdict = one.verdict
    if verdict is not Verdict.FAILED:
        if p_holm <= alpha:
            verdict = Verdict.BETTER if one.effect < 0 else Verdict.WORSE
        elif one.p_equivalence <= alpha:
            verdict = Verdict.EQUIVALENT
    fields = {**vars(one), "verdict": verdict, "p_holm": p_holm}
    return Comparison(**fields)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979): no more false alarms over all than over one."""
    order = np.argsort(p_values, kind="stable")
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


# --- power ------------------------------------------------------------------------------------------------------------


def power(effect: float, deviation: float, seeds: int, variants: int, alpha: float = ALPHA) -> float:
    """Return the probability that an effect is found among `variants` by the pooled test, corrected for their number.

    The correction is Bonferroni's, which is Holm's where only one of the variants has an effect.
    """
    special, freedom = scipy_module("special"), variants * (seeds - 1)
    if freedom < 1:
        return 0.0
    edge = -float(special.stdtrit(freedom, alpha / variants / 2))
    shift = abs(effect) / (deviation * math.sqrt(2 / seeds))
    # over the pooled deviation: a chi-squared number by its quantiles
    quantiles = special.chdtri(freedom, (np.arange(400) + 0.5) / 400)
    edges = edge * np.sqrt(quantiles / freedom)
    return float((special.ndtr(shift - edges) + special.ndtr(-shift - edges)).mean())


def detectable_effect(
    deviation: float, seeds: int, variants: int, alpha: float = ALPHA, wanted_power: float = 0.8
) -> float:
    """Return the smallest effect that is found with this probability; infinite with one seed."""
    if seeds < 2 or variants < 1:
        return math.inf
    low, high = 0.0, deviation
    while power(high, deviation, seeds, variants, alpha) < wanted_power:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        enough = power(middle, deviation, seeds, variants, alpha) >= wanted_power
        low, high = (low, middle) if enough else (middle, high)
    return high
