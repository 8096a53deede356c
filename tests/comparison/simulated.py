"""Comparisons whose runs were never trained: a suite's own plan, with losses from a given law."""

import dataclasses
import math
import random
from collections.abc import Callable
from pathlib import Path

from heddle.comparison.arms import StepTimes, next_runs
from heddle.comparison.compare import open_plan
from heddle.comparison.execution import Ledger, Result
from heddle.comparison.plan import Plan, PlannedRun
from heddle.comparison.suites import SUITES, Suite, with_settings

TINY = [
    ("rows.length", 32), ("model.width", 24), ("model.heads", 2), ("model.layers", 2),
    ("training.batch", 4), ("validation_rows", 8),
]  # fmt: skip


def tiny(name: str, text: Path, *more: tuple[str, object]) -> Suite:
    """Return a suite of the library at a size that plans at once."""
    own = [("model.hidden", 48), ("tokenizer.vocab", 400)] if name == "narang" else [("tokenizer.vocab", 290)]
    split = ("data.split.fraction", 0.3)
    return with_settings(SUITES[name](), [("data", str(text)), split, *TINY, *own, *more])


def fill(suite: Suite, folder: Path, loss: Callable[[PlannedRun], float], times: StepTimes | None = None) -> Plan:
    """Write a ledger in which every run of a suite has the loss that a law gives; not a number: it diverged."""
    folder.mkdir(parents=True, exist_ok=True)
    plan, ledger = open_plan(suite, folder), Ledger(folder)
    known = times or StepTimes.read(folder)
    while left := [run for run in next_runs(plan, ledger.results, known, True) if run.key not in ledger.results]:
        for run in left:
            ledger.add(result(plan, run, loss(run)))
    return plan


def result(plan: Plan, run: PlannedRun, loss: float) -> Result:
    """Return the result of a run as if it had been trained."""
    steps, good = run.config.training.steps, math.isfinite(loss)
    seed = random.Random(run.key)
    points = [max(1, round(steps * share)) for share in (0.2, 0.4, 0.6, 0.8, 1.0)]
    curve = (
        tuple((at, loss + 1.5 * (steps / at - 1) ** 0.7 / 3 + seed.gauss(0, 0.004)) for at in points) if good else ()
    )
    return Result(
        suite=plan.suite.name, variant=run.variant, config_hash=run.config_hash, diff="; ".join(run.changes),
        seed=run.seed, arm=run.arm, data_hash=plan.hashes.data, valid_hash=plan.hashes.valid,
        tokenizer_hash=plan.hashes.tokenizer, params=int(run.cost / 1e6) + 50_000_000, active_params=50_000_000,
        flops_token=int(run.cost / 1e3), steps=steps, tokens=steps * plan.tokens_per_step, learning_rate=1e-3,
        optimizer="adamw", gpu_s=seed.uniform(20, 60) * run.cost / 1e12, tokens_s=1e5, peak_gib=1.0,
        loss_valid=loss + 0.01 if good else None, loss_test=loss if good else None,
        status="done" if good else "diverged", reason="" if good else "the held-out loss is not a number",
        guard_skips=0, commit="0000000", device="simulated", torch="2", wall_s=1.0, key=run.key, curve=curve,
    )  # fmt: skip


def only(suite: Suite, *names: str) -> Suite:
    """Return a suite with some of its variants."""
    return dataclasses.replace(suite, variants=suite.only(names).variants)
