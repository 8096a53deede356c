"""Comparison: many variants at an equal budget, with seeds, statistics and a verdict; scaling laws."""

from heddle.comparison.scaling import (
    Fit,
    ScalingLaw,
    ScalingRun,
    bootstrap_fits,
    fit_huber,
    fit_projected,
    interval,
    optimum,
)
from heddle.comparison.statistics import (
    Agreement,
    Comparison,
    Noise,
    Verdict,
    compare_to_base,
    detectable_effect,
    holm,
    power,
    rank_agreement,
)
