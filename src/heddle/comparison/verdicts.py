"""Verdicts: what is better, from the results of a comparison, arm by arm, and its results.csv."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from heddle.comparison.arms import RATE, TIME, StepTimes, next_runs
from heddle.comparison.execution import RESULTS, Result, write_csv
from heddle.comparison.plan import CONTROL_LESS, CONTROL_SAME, CONTROLS, TOKENS, Plan, PlannedRun
from heddle.comparison.statistics import Comparison, Losses, Noise, Verdict, compare_to_base
from heddle.core import MissingExtra

ARMS = (TOKENS, RATE, TIME)


@dataclass(frozen=True)
class ArmVerdicts:
    """The verdicts of one arm, a line a variant, and the noise of its runs."""

    arm: str
    comparisons: tuple[Comparison, ...]
    noise: Noise | None
    losses: Losses


@dataclass(frozen=True)
class Compared:
    """A comparison with its verdicts: every planned run, every result, and the verdicts of each arm."""

    folder: Path
    plan: Plan
    runs: tuple[PlannedRun, ...]
    results: tuple[Result, ...]
    arms: Mapping[str, ArmVerdicts]
    times: StepTimes

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Return the verdicts at an equal number of tokens, or of the first arm that there is."""
        return next(iter(self.arms.values())).comparisons if self.arms else ()

    @property
    def noise(self) -> Noise | None:
        """Return the noise of the runs that these verdicts are from."""
        return next(iter(self.arms.values())).noise if self.arms else None

    @property
    def controls_hold(self) -> bool | None:
        """Tell whether both controls came out right: the base again not flagged, 90 % of the tokens worse."""
        found = {one.variant: one for one in self.comparisons if one.variant in CONTROLS}
        if len(found) < len(CONTROLS) or min(one.seeds for one in found.values()) < 2:
            return None
        flagged = found[CONTROL_SAME].verdict in (Verdict.BETTER, Verdict.WORSE)
        return not flagged and found[CONTROL_LESS].verdict is Verdict.WORSE

    def losses(self, arm: str = TOKENS) -> Losses:
        """Return the losses of an arm by variant and seed."""
        return self.arms[arm].losses if arm in self.arms else {}

    def of(self, variant: str, arm: str = TOKENS) -> list[Result]:
        """Return the results of a variant in an arm."""
        return [one for one in self.results if one.variant == variant and one.arm == arm]


def find_verdicts(plan: Plan, folder: Path, found: Mapping[str, Result], times: StepTimes, controls: bool) -> Compared:
    """Compare the results there are, arm by arm; write results.csv."""
    runs = next_runs(plan, found, times, controls)
    names = {run.key: run.variant for run in runs}
    results = tuple(dataclasses.replace(one, variant=names[key]) for key, one in found.items() if key in names)
    order = {run.key: number for number, run in enumerate(runs)}
    results = tuple(sorted(results, key=lambda one: order[one.key]))
    write_csv(folder / RESULTS, results)
    arms = {arm: one_arm for arm in ARMS if (one_arm := _arm_verdicts(plan, results, arm)) is not None}
    return Compared(folder, plan, tuple(runs), results, arms, times)


def _arm_verdicts(plan: Plan, results: Iterable[Result], arm: str) -> ArmVerdicts | None:
    base = plan.suite.base_name
    chosen = [one for one in results if one.arm == arm or (arm == TIME and one.variant == base and one.arm == TOKENS)]
    losses = losses_by_seed(chosen)
    if not losses:
        return None
    if base not in losses or any(not math.isfinite(loss) for loss in losses[base].values()) or len(losses) < 2:
        return ArmVerdicts(arm, (), None, losses)
    try:
        comparisons, noise = compare_to_base(losses, base)
    except MissingExtra:  # a machine that only trains; verdicts come with --report where scipy is
        return ArmVerdicts(arm, (), None, losses)
    return ArmVerdicts(arm, tuple(comparisons), noise, losses)


def losses_by_seed(results: Iterable[Result]) -> dict[str, dict[int, float]]:
    """Return losses by variant and seed, of test rows where all runs have them; infinite where a run failed."""
    chosen = list(results)
    tested = all(one.loss_test is not None for one in chosen if one.status == "done")
    found: dict[str, dict[int, float]] = {}
    for one in chosen:
        loss = one.loss_test if tested else one.loss_valid
        found.setdefault(one.variant, {})[one.seed] = math.inf if loss is None or one.status != "done" else loss
    return found
