"""Estimates: how long a comparison will take, and which effect it will be able to see."""

import statistics
import time
from collections.abc import Mapping, Sequence

import torch

from heddle.comparison.arms import StepTimes
from heddle.comparison.execution import Result
from heddle.comparison.plan import CONTROLS, Plan, PlannedRun, step_flops
from heddle.comparison.statistics import detectable_effect
from heddle.core import MissingExtra
from heddle.training import build_dry_run

USUAL_NOISE = 0.0011  # deviation of one run's log loss, beyond its variant and seed, in our speed-run ablation
TIMED = 3  # steps of the base that are timed on a CPU where nothing is known


def announce(plan: Plan, runs: Sequence[PlannedRun], left: Sequence[PlannedRun], noise: float | None) -> list[str]:
    """Return what a comparison will run, and which effect it will be able to see."""
    suite = plan.suite
    seeds, variants = len(suite.seeds), len(suite.variants)
    steps = sorted({run.config.training.steps for run in runs})
    between = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    lines = [
        f"suite {suite.name}: {variants} variants and {suite.base_name}, {seeds} seeds, arms {', '.join(suite.arms)}",
        f"{len(runs)} runs of {between} steps, {plan.tokens_per_step:,} tokens a step; {len(left)} to go",
    ]
    if seeds < 2:
        return [*lines, "with one seed nothing can be decided; want seeds=3 or more for a verdict"]
    many = variants + len(CONTROLS) * any(run.variant in CONTROLS for run in runs)
    try:
        effect = detectable_effect(noise or USUAL_NOISE, seeds, many)
    except MissingExtra as error:
        return [*lines, f"power and verdicts are left out here: {error}; --report adds them later"]
    known = f"the noise of its runs so far, {noise:.2%}" if noise else f"the usual noise of {USUAL_NOISE:.2%} a run"
    return [*lines, f"by {known}, an effect of {effect:.2%} of the loss is found in 80 % of cases"]


def expected_seconds(
    left: Sequence[PlannedRun], results: Mapping[str, Result], times: StepTimes, processes: int
) -> float | None:
    """Return how long the runs will take: by the pilot, by runs that are done, or by some steps of the base."""
    total = 0.0
    pace: float | None = None
    for run in left:
        seconds = times.find(run.config)
        if seconds is not None:
            total += seconds * run.config.training.steps
            continue
        if pace is None:
            pace = _pace(results) or _pilot_pace(left, times) or _measured_pace(left[0])
        if pace is None:
            return None
        total += pace * run.cost
    return total if torch.cuda.is_available() else total / processes  # processes share one GPU


def _pace(results: Mapping[str, Result]) -> float | None:
    """Return the seconds of a FLOP in runs that are done."""
    known = [one for one in results.values() if one.status == "done" and one.gpu_s]
    return statistics.median((one.gpu_s or 0.0) / (one.tokens * one.flops_token) for one in known) if known else None


def _pilot_pace(left: Sequence[PlannedRun], times: StepTimes) -> float | None:
    """Return the seconds of a FLOP in the steps that the pilot has timed."""
    known = [(times.find(run.config), run) for run in left]
    paces = [step * run.config.training.steps / run.cost for step, run in known if step is not None]
    return statistics.median(paces) if paces else None


def _measured_pace(run: PlannedRun) -> float | None:
    """Return the seconds of a FLOP in some steps on a CPU; on a GPU they would have to be compiled first."""
    if torch.cuda.is_available():
        return None
    dry = build_dry_run(run.config)
    dry.take()
    start = time.perf_counter()
    for _ in range(TIMED):
        dry.take()
    return (time.perf_counter() - start) / TIMED / step_flops(run.config)
