"""Statistics: paired comparisons of runs, with power and rank agreement; fits of scaling laws."""

from heddle.comparison.statistics.agreement import (
    Agreement,
    SignAgreement,
    decided_signs,
    rank_agreement,
    sign_agreement,
)
from heddle.comparison.statistics.isoflop import CostLaw, Optimum, leave_one_out, optimum_at, parabola_bottom
from heddle.comparison.statistics.paired import (
    MARGIN,
    Comparison,
    Losses,
    Noise,
    Verdict,
    compare_to_base,
    detectable_effect,
    holm,
    power,
)
from heddle.comparison.statistics.scaling_law import (
    Fit,
    ScalingLaw,
    ScalingRun,
    bootstrap_fits,
    fit_huber,
    fit_projected,
    interval,
    optimum,
)
