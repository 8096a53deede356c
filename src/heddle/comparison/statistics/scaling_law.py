"""Scaling laws: L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022), fitted to one's own runs.

The fit minimises Huber's loss of the error in log L from many starts; the sum is scaled up so that the optimizer does
not stop early, which is what went wrong in the published fit (Besiroglu et al. 2024). Variable projection is a second
opinion by another estimator: for given exponents E, A and B are a linear least-squares problem.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.comparison.statistics.paired import scipy_module
from heddle.core import UsageError

DELTA = 1e-3  # where Huber's loss turns from a square into a line, in log loss
SCALE = 1e5  # of the sum, so that the optimizer's tolerances mean little
FLOPS_PER_WEIGHT = 6.0  # of training one parameter on one token, forward and backward
CONSTANTS = 5  # E, A, B, alpha, beta
MIN_RUNS = CONSTANTS + 1
ROUGH, POLISHED, MAX_STEPS = 60, 4, 5000  # steps from every start; how many of the best go on; their steps
EXPONENTS = 0.01, 3.0  # between which alpha and beta are looked for
SMALLEST_TERM = 20.0  # nats below the loss: a term that is not there
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScalingRun:
    """One finished run: parameters, tokens (or bytes) that it was trained on, held-out loss."""

    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, parameters: float | Floats, tokens: float | Floats) -> float | Floats:
        """Return the predicted loss."""
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    @property
    def exponent(self) -> float:
        """Return a in N_opt ~ C^a: how fast the best size grows with compute."""
        return self.beta / (self.alpha + self.beta)


@dataclass(frozen=True)
class Fit:
    """A law, the value of the objective that it reached, and the spread of log errors it leaves."""

    law: ScalingLaw
    objective: float
    error: float  # root mean square of the error in log loss


def optimum(law: ScalingLaw, flops: float, per_parameter: float = FLOPS_PER_WEIGHT) -> tuple[float, float]:
    """Return the size and the tokens of lowest loss at a compute budget, where C = per_parameter * N * D."""
    product = flops / per_parameter
    ratio = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
    size = ratio * product**law.exponent
    return size, product / size


# --- fits -------------------------------------------------------------------------------------------------------------


def fit_huber(runs: Sequence[ScalingRun], delta: float = DELTA, start: ScalingLaw | None = None) -> Fit:
    """Fit by Huber's loss of log errors, from many starts or, in a bootstrap, from one."""
    sizes, tokens, losses = _columns(runs)
    # Around the middle of the grid a constant and its exponent hardly depend on each other, and descent is fast.
    middle = float(sizes.mean()), float(tokens.mean())
    columns = sizes - middle[0], tokens - middle[1], np.log(losses)
    optimize = scipy_module("optimize")

    within = _bounds(losses)
    lowest, highest = np.array(within).T

    def minimum(first: Floats, tolerance: float, steps: int) -> Any:
        limits = {"maxiter": steps, "maxfun": 4 * steps, "ftol": tolerance, "gtol": tolerance}
        settings = {"jac": True, "method": "L-BFGS-B", "bounds": within, "options": limits}
        return optimize.minimize(_huber, np.clip(first, lowest, highest), (*columns, delta), **settings)

    starts = _starts(losses) if start is None else [_point(start, middle)]
    rough = sorted((minimum(first, 1e-6, ROUGH) for first in starts), key=lambda found: float(found.fun))
    best = min((minimum(one.x, 1e-14, MAX_STEPS) for one in rough[:POLISHED]), key=lambda found: float(found.fun))
    return _fit(_law(best.x, middle), runs, float(best.fun) / SCALE)


def _bounds(losses: Floats) -> list[tuple[float, float]]:
    """Return bounds for terms that few noisy runs leave free: in the middle of the grid none is above the losses."""
    term = math.log(losses.min()) - SMALLEST_TERM, math.log(losses.max()) + 1.0
    return [term, term, term, EXPONENTS, EXPONENTS]


def _huber(point: Floats, sizes: Floats, tokens: Floats, logs: Floats, delta: float) -> tuple[float, Floats]:
    """Return the scaled sum of Huber losses and its gradient at (log A, log B, log E, alpha, beta)."""
    a, b, e, alpha, beta = point
    terms = np.stack([a - alpha * sizes, b - beta * tokens, np.full_like(sizes, e)])
    top = terms.max(axis=0)
    shares = np.exp(terms - top)
    predicted = top + np.log(shares.sum(axis=0))
    shares /= shares.sum(axis=0)
    errors = predicted - logs
    small = np.abs(errors) <= delta
    value = np.where(small, errors**2 / 2, delta * (np.abs(errors) - delta / 2)).sum()
    slope = np.clip(errors, -delta, delta)
    weighted = slope * shares
    gradient = [weighted[0].sum(), weighted[1].sum(), weighted[2].sum()]
    gradient += [-(weighted[0] * sizes).sum(), -(weighted[1] * tokens).sum()]
    return SCALE * float(value), SCALE * np.array(gradient)


def _starts(losses: Floats) -> list[Floats]:
    """Return starts over a grid of exponents and shares of the loss that no compute removes."""
    lowest, middle = float(losses.min()), float(np.median(losses))
    found = []
    for alpha in (0.1, 0.25, 0.4, 0.6, 0.9):
        for beta in (0.1, 0.25, 0.4, 0.6, 0.9):
            for share in (0.2, 0.5, 0.8, 0.95):
                half = math.log((middle - share * lowest) / 2)
                found.append(np.array([half, half, math.log(share * lowest), alpha, beta]))
    return found


def fit_projected(runs: Sequence[ScalingRun]) -> Fit:
    """Fit by variable projection: least squares of relative errors, exponents outside, E, A and B inside."""
    sizes, tokens, losses = _columns(runs)
    optimize = scipy_module("optimize")

    def inner(exponents: Floats) -> tuple[Floats, Floats]:
        columns = np.stack([np.ones_like(sizes), np.exp(-exponents[0] * sizes), np.exp(-exponents[1] * tokens)], 1)
        scale = np.abs(columns).max(axis=0)
        weights, _ = optimize.nnls(columns / scale / losses[:, None], np.ones_like(losses))
        return weights / scale, (columns @ (weights / scale)) / losses - 1

    best: Any = None
    for alpha in (0.15, 0.3, 0.5, 0.8):
        for beta in (0.15, 0.3, 0.5, 0.8):
            found = optimize.least_squares(lambda point: inner(point)[1], [alpha, beta], bounds=EXPONENTS)
            if best is None or found.cost < best.cost:
                best = found
    constants = inner(best.x)[0]
    law = ScalingLaw(*(float(value) for value in constants), *(float(value) for value in best.x))
    return _fit(law, runs, float(best.cost))


def bootstrap_fits(
    runs: Sequence[ScalingRun], draws: int = 1000, seed: int = 0, start: ScalingLaw | None = None
) -> list[ScalingLaw]:
    """Fit again to runs drawn with replacement, each time from the fit of all; the spread is the uncertainty."""
    best, random = start or fit_huber(runs).law, np.random.default_rng(seed)
    laws: list[ScalingLaw] = []
    while len(laws) < draws:
        drawn = [runs[number] for number in random.integers(len(runs), size=len(runs))]
        if len(set(drawn)) >= MIN_RUNS:
            laws.append(fit_huber(drawn, start=best).law)
    return laws


def interval(values: Sequence[float], runs: int, level: float = 0.95) -> tuple[float, float]:
    """Return the bootstrap interval of a quantity of the law, one value for each of `bootstrap_fits`.

    Five constants follow the runs closely, and few runs say little about their own noise: around its middle the
    interval of percentiles is widened as Student's distribution is wider than the normal one.
    """
    low, middle, high = np.percentile(values, [50 - 50 * level, 50, 50 + 50 * level])
    freedom, special = runs - CONSTANTS, scipy_module("special")
    tail = (1 + level) / 2
    wider = math.sqrt(runs / freedom) * float(special.stdtrit(freedom, tail) / special.ndtri(tail))
    return float(middle - wider * (middle - low)), float(middle + wider * (high - middle))


def _columns(runs: Sequence[ScalingRun]) -> tuple[Floats, Floats, Floats]:
    """Return log sizes, log tokens and losses."""
    if len(set(runs)) < MIN_RUNS:
        raise UsageError(f"a scaling law has five constants: want at least {MIN_RUNS} runs, got {len(set(runs))}")
    for run in runs:
        if not all(0 < value < math.inf for value in (run.parameters, run.tokens, run.loss)):
            raise UsageError(f"a scaling law needs finite numbers above 0, got {run}")
    table = np.array([(run.parameters, run.tokens, run.loss) for run in runs], np.float64)
    if min(len(set(table[:, 0])), len(set(table[:, 1]))) < 2:
        raise UsageError("a scaling law needs runs of two sizes and two numbers of tokens at least")
    return np.log(table[:, 0]), np.log(table[:, 1]), table[:, 2]


def _law(point: Floats, middle: tuple[float, float]) -> ScalingLaw:
    a, b, e, alpha, beta = (float(value) for value in point)
    a, b = a + alpha * middle[0], b + beta * middle[1]
    return ScalingLaw(E=math.exp(e), A=math.exp(a), B=math.exp(b), alpha=alpha, beta=beta)


def _point(law: ScalingLaw, middle: tuple[float, float]) -> Floats:
    a, b = math.log(law.A) - law.alpha * middle[0], math.log(law.B) - law.beta * middle[1]
    return np.array([a, b, math.log(law.E), law.alpha, law.beta])


def _fit(law: ScalingLaw, runs: Sequence[ScalingRun], objective: float) -> Fit:
    errors = [math.log(float(law.loss(run.parameters, run.tokens)) / run.loss) for run in runs]
    return Fit(law, objective, math.sqrt(sum(error**2 for error in errors) / len(errors)))
