"""Learning rates over width: the best of a few at two widths gives a power law of the rate (Kaplan et al. 2020; muP).

One rate for all sizes would favour the size that it suits; that alone moved the exponent of the best size in published
laws (Porian et al. 2024). The search has a seed of its own and reads the validation rows; laws are about the test rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heddle.comparison.arms import RATE, SEARCH_SEED
from heddle.comparison.execution import Result
from heddle.comparison.scaling.cells import Cell, CellRun, Grid, Profile
from heddle.core import UsageError

FURTHER = 2  # rates beyond the tried ones, each twice the last, where the best is at the edge
STEEPEST = -1.0  # as muP scales Adam's rate of hidden matrices; no rule rises with the width


@dataclass(frozen=True)
class RateRule:
    """Rate at a width, as a ratio of the recipe's: factor * (width / at_width) ** power."""

    factor: float
    at_width: int
    power: float
    basis: str

    def at(self, width: int) -> float:
        """Return the ratio at a width, rounded so that a run has the same name everywhere."""
        return float(f"{self.factor * (width / self.at_width) ** self.power:.3g}")


def tried(grid: Grid, cell: Cell, results: Mapping[str, Result]) -> list[CellRun]:
    """Return the runs of the search at a size; where the best rate is the last one tried, further ones follow."""
    runs = {factor: _run(grid, cell, factor) for factor in sorted(grid.study.scale.rates)}
    for _ in range(FURTHER):
        if any(run.key not in results for run in runs.values()):
            break
        factors = sorted(runs)
        best = best_factor(list(runs.values()), results)
        beyond = {factors[0]: factors[0] / 2, factors[-1]: factors[-1] * 2}.get(best or 0.0)
        if beyond is None:
            break
        runs[beyond] = _run(grid, cell, beyond)
    return list(runs.values())


def _run(grid: Grid, cell: Cell, factor: float) -> CellRun:
    return grid.runs(cell, f"{RATE} x {factor:g}", [SEARCH_SEED], factor)[0]


def search_runs(grid: Grid, profile: Profile, results: Mapping[str, Result]) -> list[CellRun]:
    """Return all runs of the search for the rates of one architecture that can be named by now."""
    if grid.study.scale.rule != "power":
        return []
    cells = dict.fromkeys((profile.smallest.shape, profile.middle.shape))
    by_shape = {cell.shape: cell for cell in (profile.middle, profile.smallest)}
    return [run for shape in cells for run in tried(grid, by_shape[shape], results)]


def find_rule(grid: Grid, profile: Profile, results: Mapping[str, Result]) -> RateRule | None:
    """Return the rule of one architecture; None while a run of its search is missing."""
    small, middle = profile.smallest, profile.middle
    if grid.study.scale.rule == "fixed":
        return RateRule(1.0, middle.shape.width, 0.0, "the recipe's rate at every width")
    if grid.study.scale.rule == "width":
        return RateRule(1.0, middle.shape.width, STEEPEST, f"width^-1, the recipe's rate at width {middle.shape.width}")
    searches = {cell.shape.width: tried(grid, cell, results) for cell in (small, middle)}
    if any(run.key not in results for runs in searches.values() for run in runs):
        return None
    best = {width: best_between(runs, results, profile) for width, runs in searches.items()}
    (low, first), (high, last) = min(best.items()), max(best.items())
    power = 0.0 if low == high else math.log(last / first) / math.log(high / low)
    kept = min(0.0, max(STEEPEST, power))
    basis = f"best at width {low}: x {first:.3g}" + (f", at width {high}: x {last:.3g}" if high != low else "")
    basis += "" if kept == power else f"; a power of {power:.2f} is taken as {kept:.0f}"
    factor = math.sqrt(first * last) if power != kept else first  # a clipped rule passes between the two
    return RateRule(factor, round(math.sqrt(low * high)) if power != kept else low, kept, basis)


def best_factor(runs: list[CellRun], results: Mapping[str, Result]) -> float | None:
    """Return the factor of lowest held-out loss; None: every run failed."""
    known = _known(runs, results)
    return min(known, key=lambda factor: known[factor]) if known else None


def best_between(runs: list[CellRun], results: Mapping[str, Result], profile: Profile) -> float:
    """Return the factor at the bottom of a parabola through the best rate and its neighbours, in log rate."""
    known, best = _known(runs, results), best_factor(runs, results)
    if best is None:
        name = profile.architecture.name
        raise UsageError(f"{name}: every learning rate that was tried failed; lower training.optimizer.learning_rate")
    factors = sorted(known)
    at = factors.index(best)
    if at in (0, len(factors) - 1):
        return best
    near = factors[at - 1 : at + 2]
    curve = np.polyfit(np.log(near), [known[factor] for factor in near], 2)
    bottom = -curve[1] / (2 * curve[0]) if curve[0] > 0 else math.log(best)
    return math.exp(min(math.log(near[-1]), max(math.log(near[0]), float(bottom))))


def _known(runs: list[CellRun], results: Mapping[str, Result]) -> dict[float, float]:
    losses = {run.factor: results[run.key].loss_valid for run in runs if run.key in results}
    return {factor: loss for factor, loss in losses.items() if loss is not None}
