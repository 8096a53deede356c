"""IsoFLOP profiles (Hoffmann et al. 2022): the best size at a budget, by a law with exact FLOPs or by a parabola.

A parabola in log size is biased even without noise, because the true profile is not symmetric; it is shown beside the
law for that reason, never instead of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.comparison.statistics.scaling_law import MIN_RUNS, Fit, ScalingLaw, ScalingRun, fit_huber
from heddle.core import UsageError

LARGEST = math.log(1e18)  # of a size: a law that is flat in it has its lowest point nowhere


@dataclass(frozen=True)
class CostLaw:
    """FLOPs of training on one token as a power of the size: factor * N ** power, fitted to the sizes of a grid.

    Attention, head and embeddings make it differ from six a parameter.
    """

    factor: float
    power: float

    @classmethod
    def fit(cls, sizes: Sequence[float], flops: Sequence[float]) -> "CostLaw":
        """Fit it to counted FLOPs; of one size, they are in proportion."""
        if len(set(sizes)) < 2:
            return cls(flops[0] / sizes[0], 1.0)
        power, factor = np.polyfit(np.log(sizes), np.log(flops), 1)
        return cls(math.exp(float(factor)), float(power))

    def tokens(self, size: float, flops: float) -> float:
        """Return the tokens that a budget pays for."""
        return flops / (self.factor * math.pow(size, self.power))


@dataclass(frozen=True)
class Optimum:
    """The best size at a budget, its tokens, and the loss that a law gives them."""

    parameters: float
    tokens: float
    loss: float

    @property
    def is_inside(self) -> bool:
        """Tell whether the law is lowest at a size that a model can have."""
        return 1 < self.parameters < math.exp(LARGEST) * (1 - 1e-9)


def optimum_at(law: ScalingLaw, flops: float, cost: CostLaw) -> Optimum:
    """Return where a law is lowest at a budget, for sizes from 1 to 1e18: the zero of its derivative in log size."""
    gain, price = law.alpha * law.A, cost.power * law.beta * law.B
    both = law.alpha + cost.power * law.beta
    log_size = (math.log(gain / price) + law.beta * math.log(flops / cost.factor)) / both
    size = math.exp(min(max(log_size, 0.0), LARGEST))
    tokens = cost.tokens(size, flops)
    return Optimum(size, tokens, float(law.loss(size, tokens)))


def parabola_bottom(sizes: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the size at the bottom of a parabola in log size; None: it has none between the sizes."""
    if len(set(sizes)) < 3:
        return None
    logs = np.log(np.asarray(sizes, np.float64))
    curve = np.polyfit(logs - logs.mean(), np.asarray(losses, np.float64), 2)
    if curve[0] <= 0:
        return None
    bottom = float(logs.mean() - curve[1] / (2 * curve[0]))
    return math.exp(bottom) if logs.min() <= bottom <= logs.max() else None


def leave_one_out(groups: Mapping[float, Sequence[ScalingRun]], start: ScalingLaw) -> dict[float, Fit]:
    """Fit again without each group of runs, such as one budget; one without which no fit is left is skipped."""
    fits: dict[float, Fit] = {}
    for left_out in groups:
        runs = [run for name, group in groups.items() if name != left_out for run in group]
        if len(set(runs)) < MIN_RUNS:
            continue
        try:
            fits[left_out] = fit_huber(runs, start=start)
        except UsageError:
            continue
    return fits
