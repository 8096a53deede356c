"""Comparison: many variants at an equal budget, with seeds, statistics and a verdict; scaling laws."""

from heddle.comparison.compare import Compared, judge_suite, run_suite
from heddle.comparison.executors import EXECUTORS, Executor
from heddle.comparison.ledger import Ledger, Result
from heddle.comparison.report import write_report
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
from heddle.comparison.suite import BudgetConfig, Suite, Variant, edit_model, set_fields, swap_parts, with_settings
from heddle.comparison.suites import SUITES, find_suite, register_suite
