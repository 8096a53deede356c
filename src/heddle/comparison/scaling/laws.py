"""The law of each architecture: the fit of its runs, a second opinion, intervals, stability, and the best sizes."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from heddle.comparison.execution import Result
from heddle.comparison.scaling.cells import GRID, Cell, CellRun, Grid, Profile
from heddle.comparison.statistics import (
    CostLaw,
    Fit,
    Optimum,
    ScalingLaw,
    ScalingRun,
    bootstrap_fits,
    fit_huber,
    fit_projected,
    interval,
    leave_one_out,
    optimum_at,
    parabola_bottom,
)
from heddle.core import UsageError

CONSTANTS = ("E", "A", "B", "alpha", "beta", "exponent")
BEYOND = (1.0, 10.0, 100.0)  # times the largest budget, for which the best size is shown
SAME = 1e-3  # by which the bytes of a token may differ between runs on the same rows

Interval = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """A finished run of the grid: its cell, and its loss in the unit of the study."""

    cell: Cell
    seed: int
    loss: float

    def run(self, parameters: int | None = None) -> ScalingRun:
        """Return it as a run for a fit, by all its parameters or by another count."""
        return ScalingRun(float(parameters or self.cell.parameters), float(self.cell.tokens), self.loss)


@dataclass(frozen=True)
class Best:
    """The best size at a budget with its interval, and where a parabola has its bottom."""

    flops: float
    optimum: Optimum
    parameters: Interval
    tokens: Interval
    loss: Interval
    parabola: float | None = None
    inside: bool = True  # a budget of the grid; else the law is extrapolated


@dataclass(frozen=True)
class ArchitectureLaw:
    """What is known of one architecture; without a fit, `reason` says why."""

    profile: Profile
    points: tuple[Point, ...]
    missing: int  # runs of the grid that are not done
    failed: tuple[str, ...] = ()
    rates: str = ""
    reason: str = ""
    fit: Fit | None = None
    projected: Fit | None = None
    by_stack: Fit | None = None  # the law in parameters without embeddings and head
    draws: tuple[ScalingLaw, ...] = field(default=(), repr=False)
    without: Mapping[float, Fit] = field(default_factory=dict)  # the fit without each budget
    cost: CostLaw = field(default_factory=lambda: CostLaw(6.0, 1.0))
    best: tuple[Best, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the architecture."""
        return self.profile.architecture.name

    @property
    def law(self) -> ScalingLaw:
        """Return the fitted law; refuse where there is none yet."""
        if self.fit is None:
            raise UsageError(f"{self.name}: no law yet: {self.reason}")
        return self.fit.law

    def constants(self) -> dict[str, tuple[float, Interval]]:
        """Return the constants with their intervals; those of A and B, which span orders, are made in logarithms."""
        found = {}
        for name in CONSTANTS:
            drawn = [_constant(law, name) for law in self.draws]
            if name in ("A", "B"):
                low, high = interval([math.log(value) for value in drawn], len(self.points))
                edges = math.exp(low), math.exp(high)
            else:
                low, high = interval(drawn, len(self.points))
                edges = max(0.0, low), min(1.0, high) if name == "exponent" else high
            found[name] = _constant(self.law, name), edges
        return found

    def plain(self) -> dict[str, Any]:
        """Return the law as plain data."""
        found: dict[str, Any] = {"runs": len(self.points), "missing": self.missing, "failed": list(self.failed)}
        found |= {"rates": self.rates, "left_out": list(self.profile.left_out)}
        if self.fit is None or self.projected is None or self.by_stack is None:
            return found | {"reason": self.reason}
        return found | {
            "constants": {name: {"value": v, "interval": list(i)} for name, (v, i) in self.constants().items()},
            "error": self.fit.error,
            "variable_projection": _law_plain(self.projected.law),
            "without_embeddings": _law_plain(self.by_stack.law),
            "without_budget": {f"{flops:g}": _law_plain(fit.law) for flops, fit in self.without.items()},
            "flops_per_token": {"factor": self.cost.factor, "power": self.cost.power},
            "best": [best_row(one) for one in self.best],
        }


def _constant(law: ScalingLaw, name: str) -> float:
    return law.exponent if name == "exponent" else float(vars(law)[name])


def _law_plain(law: ScalingLaw) -> dict[str, float]:
    return {name: _constant(law, name) for name in CONSTANTS}


def best_row(one: Best) -> dict[str, Any]:
    """Return the best size at a budget as a row."""
    return {
        "flops": one.flops, "parameters": one.optimum.parameters, "parameters_low": one.parameters[0],
        "parameters_high": one.parameters[1], "tokens": one.optimum.tokens, "tokens_low": one.tokens[0],
        "tokens_high": one.tokens[1], "loss": one.optimum.loss, "loss_low": one.loss[0], "loss_high": one.loss[1],
        "parabola": one.parabola, "measured": one.inside,
    }  # fmt: skip


# --- the unit of the loss ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """What losses are given in: bits per byte where every token is predicted, else nats per target."""

    name: str = "nats per target"
    factor: float = 1.0

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Unit":
        """Find it from finished runs on the same rows."""
        known = [one for one in results if one.status == "done"]
        ratios = [one.bits_per_nat for one in known if one.bits_per_nat is not None]
        if not ratios or len(ratios) < len(known) or max(ratios) / min(ratios) - 1 > SAME:
            return cls()  # also where unknown tokens hide bytes: their share does not shrink with the loss
        return cls("bits per byte", float(np.median(ratios)))

    def loss(self, result: Result) -> float:
        """Return the loss of a run: of the test rows where there are any."""
        return result.loss * self.factor


# --- fits -------------------------------------------------------------------------------------------------------------


def fit_architecture(
    grid: Grid, profile: Profile, runs: Sequence[CellRun], results: Mapping[str, Result], rates: str
) -> ArchitectureLaw:
    """Fit the law of one architecture to the runs of its grid that are done."""
    mine = [run for run in runs if run.run.arm == GRID and run.cell.architecture == profile.architecture.name]
    unit = Unit.of(list(results.values()))
    done = [(run, results[run.key]) for run in mine if run.key in results]
    points = tuple(Point(run.cell, run.run.seed, unit.loss(one)) for run, one in done if math.isfinite(one.loss))
    lost = tuple(
        f"{run.cell.variant}, {run.cell.budget:.3g} FLOPs, seed {run.run.seed}: {one.status}: {one.reason}"
        for run, one in done
        if not math.isfinite(one.loss)
    )
    found = ArchitectureLaw(profile, points, len(mine) - len(done), lost, rates)
    try:
        return _fitted(found, grid.study.scale.draws)
    except UsageError as error:
        return dataclasses.replace(found, reason=str(error))


def _fitted(found: ArchitectureLaw, draws: int) -> ArchitectureLaw:
    runs = tuple(point.run() for point in found.points)
    by_stack = tuple(point.run(point.cell.stack_parameters) for point in found.points)
    groups: dict[float, list[ScalingRun]] = {}
    for point in found.points:
        groups.setdefault(point.cell.budget, []).append(point.run())
    cells = found.profile.cells
    cost = CostLaw.fit([float(cell.parameters) for cell in cells], [float(cell.flops_token) for cell in cells])
    fit, laws = _fit_with_draws(runs, draws)
    return _with_best(
        dataclasses.replace(
            found,
            fit=fit,
            draws=laws,
            projected=fit_projected(runs),
            by_stack=_fit(by_stack),
            without=leave_one_out(groups, fit.law),
            cost=cost,
        )
    )


@lru_cache(maxsize=16)
def _fit(runs: tuple[ScalingRun, ...]) -> Fit:
    """Fit once to the same runs, which are read again before and after a larger run."""
    return fit_huber(runs)


@lru_cache(maxsize=16)
def _fit_with_draws(runs: tuple[ScalingRun, ...], draws: int) -> tuple[Fit, tuple[ScalingLaw, ...]]:
    fit = _fit(runs)
    return fit, tuple(bootstrap_fits(runs, draws, start=fit.law))


def _with_best(found: ArchitectureLaw) -> ArchitectureLaw:
    budgets = found.profile.budgets
    asked = [*budgets[:-1], *(budgets[-1] * times for times in BEYOND)]
    return dataclasses.replace(found, best=tuple(_best(found, flops) for flops in asked))


def _best(found: ArchitectureLaw, flops: float) -> Best:
    best = optimum_at(found.law, flops, found.cost)
    drawn = [one for law in found.draws if (one := optimum_at(law, flops, found.cost)).is_inside]
    if not best.is_inside or not drawn:
        raise UsageError(
            f"best size at {flops:.3g} FLOPs: not determined by these runs; their losses hardly depend on it"
        )
    ranges = [
        interval([math.log(vars(one)[name]) for one in drawn], len(found.points))
        for name in ("parameters", "tokens", "loss")
    ]
    size, tokens, loss = ((math.exp(low), math.exp(high)) for low, high in ranges)
    here = [point for point in found.points if point.cell.budget == flops]
    bottom = parabola_bottom([float(p.cell.parameters) for p in here], [p.loss for p in here])
    return Best(flops, best, size, tokens, loss, bottom, bool(here))


# --- predictions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """The predicted loss of a run: its 95 % interval, and the band that other ways to fit add to it."""

    loss: float
    interval: Interval
    band: Interval


def predict(found: ArchitectureLaw, parameters: float, tokens: float, seeds: int = 1) -> Predicted:
    """Predict the mean loss of runs at a size.

    The interval has the spread of the bootstrap and the noise of the runs themselves. The band also covers what the
    fits without one budget and the second estimator say: beyond the grid the choice of a fit matters more than noise.
    """
    if found.fit is None or found.projected is None:
        raise UsageError(f"{found.name}: no law yet: {found.reason}")
    count = len(found.points)
    noise = found.fit.error * math.sqrt(count / max(1, count - 5) / seeds)
    draw = np.random.default_rng(0).normal(0.0, noise, len(found.draws))
    logs = [math.log(float(law.loss(parameters, tokens))) for law in found.draws]
    low, high = interval([value + float(error) for value, error in zip(logs, draw, strict=True)], count)
    others = [found.projected.law, *(fit.law for fit in found.without.values())]
    losses = [float(law.loss(parameters, tokens)) for law in others]
    edges = (math.exp(low), math.exp(high))
    band = (min(edges[0], *losses), max(edges[1], *losses))
    return Predicted(float(found.fit.law.loss(parameters, tokens)), edges, band)
