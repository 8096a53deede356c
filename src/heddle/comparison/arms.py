"""Arms: what a comparison holds equal: tokens, with a learning rate of each variant's own, or seconds of training.

The search for a rate is by successive halving (Jamieson & Talwalkar 2016): all rates for a quarter of the steps, on a
seed of its own, then the best one in full. It reads the validation rows; verdicts are about the test rows.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from heddle.comparison.execution import Result
from heddle.comparison.plan import TOKENS, Plan, PlannedRun, budget_steps, config_hash, control_runs
from heddle.comparison.suites import RATES, Suite, Variant
from heddle.core import UsageError, fields_of, replace, swap
from heddle.core.system import parse_json, read_text
from heddle.training import RunConfig
from heddle.training.optimizers import OptimizerConfig

RATE, TIME, PILOT = "rate", "time", "pilot.json"
SEARCH_SEED = 900_000  # of the search alone, so that no run of the table is chosen by its luck
SEARCH_SHARE = 0.25  # of the steps
NOTABLE = 0.05  # by which a step must be slower or faster than the base's for the arm `time`


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by config, as the pilot measured them, one at a time."""

    seconds: Mapping[str, float]

    @classmethod
    def read(cls, folder: Path) -> "StepTimes":
        """Read pilot.json, where there is one."""
        path = folder / PILOT
        plain = parse_json(read_text(path), str(path)) if path.exists() else {"steps": {}}
        return cls({name: step["seconds"] for name, step in plain["steps"].items() if not step["reason"]})

    def find(self, config: RunConfig) -> float | None:
        """Return the seconds of a step, if they are known."""
        return self.seconds.get(config_hash(config))

    def of(self, config: RunConfig, name: str) -> float:
        """Return the seconds of a step, or say how they become known."""
        found = self.find(config)
        if found is None:
            raise UsageError(f"{name}: its speed is not known yet, and equal seconds need it; run with --pilot first")
        return found


def check_times(suite: Suite, folder: Path) -> None:
    """Refuse equal seconds where no pilot has measured any speed."""
    if (TIME in suite.arms or suite.budget.seconds is not None) and not (folder / PILOT).exists():
        raise UsageError(f"suite {suite.name}: equal seconds need the speed of each variant; run with --pilot first")


def check_speeds(plan: Plan, times: StepTimes) -> None:
    """Refuse to train for equal seconds where the speed of a variant is not known."""
    if TIME in plan.suite.arms:
        for variant, config in plan.variants:
            times.of(config, variant.name)


def next_runs(plan: Plan, results: Mapping[str, Result], times: StepTimes, controls: bool) -> list[PlannedRun]:
    """Return all runs that can be named by now; those of a tuned rate follow from the search for it."""
    runs: list[PlannedRun] = []
    for variant, config in plan.variants:
        steps = _steps(plan, variant, config, times)
        if TOKENS in plan.suite.arms or TIME in plan.suite.arms:
            runs += plan.runs(variant, config, TOKENS, steps, plan.suite.seeds)
        if RATE in plan.suite.arms:
            search = search_runs(plan, variant, config, steps)
            runs += search
            best = best_rate(search, results)
            if best is not None:
                runs += plan.runs(variant, with_rate(config, best), RATE, steps, plan.suite.seeds)
    if controls and TOKENS in plan.suite.arms:
        runs[len(plan.suite.seeds) : len(plan.suite.seeds)] = control_runs(plan, _steps(plan, *plan.variants[0], times))
    if TIME in plan.suite.arms:
        runs += _timed_runs(plan, times)
    return list({run.key: run for run in runs}.values())


def _steps(plan: Plan, variant: Variant, config: RunConfig, times: StepTimes) -> int:
    seconds = None if plan.suite.budget.seconds is None else times.of(config, variant.name)
    return budget_steps(plan.suite, config, variant.name, seconds)


def _timed_runs(plan: Plan, times: StepTimes) -> list[PlannedRun]:
    """Return runs of as many seconds as the base takes, for the variants whose steps are notably slower or faster.

    A variant of unknown speed has none: a report may be about many variants of which a few were trained so.
    """
    (first, base), *variants = plan.variants
    whole, pace = _steps(plan, first, base, times), times.find(base)
    runs: list[PlannedRun] = []
    for variant, config in variants:
        seconds = times.find(config)
        ratio = 1.0 if seconds is None or pace is None else seconds / pace
        if abs(ratio - 1) > NOTABLE:
            runs += plan.runs(variant, config, TIME, max(1, round(whole / ratio)), plan.suite.seeds)
    return runs


def search_runs(plan: Plan, variant: Variant, config: RunConfig, steps: int) -> list[PlannedRun]:
    """Return the search for a learning rate: each for a quarter of the steps."""
    short, seed = max(1, round(SEARCH_SHARE * steps)), SEARCH_SEED + plan.suite.seeds[0]
    runs: list[PlannedRun] = []
    for factor in RATES:
        runs += plan.runs(variant, with_rate(config, factor), f"{RATE} x {factor:g}", short, [seed])
    return runs


def with_rate(config: RunConfig, factor: float) -> RunConfig:
    """Return the run with its learning rates times a factor."""
    optimizer = config.training.optimizer
    if not isinstance(fields_of(optimizer).get("learning_rate"), float):
        raise UsageError(f"arms=rate: the optimizer {optimizer.kind} has no learning_rate")

    def scale(one: OptimizerConfig) -> OptimizerConfig:
        return replace(one, learning_rate=fields_of(one)["learning_rate"] * factor)

    return replace(config, training=replace(config.training, optimizer=swap(OptimizerConfig, scale)(optimizer)))


def best_rate(search: list[PlannedRun], results: Mapping[str, Result]) -> float | None:
    """Return the factor of lowest validation loss; None while a run of the search is missing, or all have failed."""
    if any(run.key not in results for run in search):
        return None
    losses = {factor: results[run.key].loss_valid for factor, run in zip(RATES, search, strict=True)}
    known = {factor: loss for factor, loss in losses.items() if loss is not None}
    return min(known, key=lambda factor: known[factor]) if known else None


def rate_losses(plan: Plan, results: Iterable[Result]) -> dict[str, list[float]]:
    """Return the validation losses of each search by variant, in the order of the rates; infinite: failed."""
    found = {(one.variant, one.arm): one for one in results}
    arms = [f"{RATE} x {factor:g}" for factor in RATES]
    losses = {}
    for variant, _ in plan.variants:
        runs = [found[variant.name, arm] for arm in arms if (variant.name, arm) in found]
        if len(runs) == len(arms):
            losses[variant.name] = [math.inf if run.loss_valid is None else run.loss_valid for run in runs]
    return losses
