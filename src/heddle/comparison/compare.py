"""Compare: train the runs of a suite that are not done yet, judge them, and write results.csv and report.html."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from heddle.comparison.executors import EXECUTORS, Executor
from heddle.comparison.ledger import RESULTS, RUNS, Ledger, Result, write_csv
from heddle.comparison.plan import CONTROL_LESS, CONTROL_SAME, Plan, PlannedRun, make_plan, prepare_base
from heddle.comparison.statistics import Comparison, Noise, Verdict, compare_to_base, detectable_effect
from heddle.comparison.suite import BASE, Suite
from heddle.comparison.worker import Job
from heddle.core import UsageError, encode
from heddle.core.system import lock_folder

USUAL_NOISE = 0.0011  # deviation of one run's log loss, beyond its variant and seed, in our speed-run ablation
Say = Callable[[str], None]


@dataclass(frozen=True)
class Compared:
    """A comparison with its verdicts: one line a variant, the noise, and every run."""

    folder: Path
    plan: Plan
    results: tuple[Result, ...]
    comparisons: tuple[Comparison, ...]
    noise: Noise | None

    @property
    def controls_hold(self) -> bool | None:
        """Tell whether both controls came out right: the base again not flagged, 90 % of the tokens worse."""
        found = {one.variant: one.verdict for one in self.comparisons}
        if not {CONTROL_SAME, CONTROL_LESS} <= set(found):
            return None
        flagged = found[CONTROL_SAME] in (Verdict.BETTER, Verdict.WORSE)
        return not flagged and found[CONTROL_LESS] is Verdict.WORSE

    def losses(self, arm: str = "tokens") -> dict[str, dict[int, float]]:
        """Return the losses of an arm by variant and seed."""
        return losses_of(self.results, arm)


def losses_of(results: tuple[Result, ...], arm: str) -> dict[str, dict[int, float]]:
    """Return losses by variant and seed: bits per byte where all runs have them, else nats."""
    chosen = [result for result in results if result.arm == arm]
    bits = all(result.bits_per_byte is not None for result in chosen if result.status == "done")
    found: dict[str, dict[int, float]] = {}
    for result in chosen:
        value = result.bits_per_byte if bits and result.bits_per_byte is not None else result.loss
        found.setdefault(result.variant, {})[result.seed] = value if result.status == "done" else float("inf")
    return found


def run_suite(
    suite: Suite,
    folder: Path,
    say: Say = lambda text: None,
    executor: str = "local",
    processes: int | None = None,
    controls: bool = True,
) -> Compared:
    """Train what a suite still lacks and judge all of it; killed anywhere and run again, it goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, wait=False) as free:
        if not free:
            raise UsageError(f"{folder}: another process is running this comparison")
        base, prepared = prepare_base(suite, folder)
        plan = make_plan(suite, base, prepared, controls)
        ledger = Ledger(folder)
        left = [run for run in plan.runs if run.key not in ledger.results]
        many = processes if processes is not None else default_processes()
        for line in announce(suite, plan, len(left)):
            say(line)
        _train(left, plan, folder, ledger, EXECUTORS[executor](many), say)
        return judge_results(plan, folder, ledger)


def judge_suite(suite: Suite, folder: Path, controls: bool = True) -> Compared:
    """Judge what a folder holds of a suite, without training anything."""
    if not (folder / RUNS).exists():
        raise UsageError(f"{folder}: holds no runs of a comparison yet")
    base, prepared = prepare_base(suite, folder)
    return judge_results(make_plan(suite, base, prepared, controls), folder, Ledger(folder))


def default_processes() -> int:
    """Return how many runs train at once: one on a GPU, where time is measured; on a CPU one for each core."""
    return 1 if torch.cuda.is_available() else max(1, os.cpu_count() or 1)


def announce(suite: Suite, plan: Plan, left: int) -> list[str]:
    """Return what a comparison will run, and which effect it will be able to see."""
    seeds, variants = len(suite.seeds), len(suite.variants)
    effect = detectable_effect(USUAL_NOISE, seeds, variants)
    steps = sorted({run.config.training.steps for run in plan.runs})
    lines = [
        f"suite {suite.name}: {variants} variants and their base, {seeds} seeds, arms {', '.join(suite.arms)}",
        f"{len(plan.runs)} runs of {steps[0]:,}{f' to {steps[-1]:,}' if len(steps) > 1 else ''} steps, "
        f"{plan.tokens_per_step:,} tokens a step; {len(plan.runs) - left} are done, {left} to go",
    ]
    if seeds > 1:
        noise = f"with the usual noise ({USUAL_NOISE:.2%} a run)"
        lines.append(f"{noise} an effect of {effect:.2%} of the loss is found in 80 % of cases")
    else:
        lines.append("with one seed nothing can be decided; want seeds=3 or more for a verdict")
    return lines


def _train(left: list[PlannedRun], plan: Plan, folder: Path, ledger: Ledger, executor: Executor, say: Say) -> None:
    jobs = [_job(run, plan, folder) for run in left]
    done = 0

    def on_result(result: Result) -> None:
        nonlocal done
        done += 1
        ledger.add(result)
        figure = f"loss {result.loss:.4f}" if result.status == "done" else f"{result.status}: {result.reason}"
        say(
            f"[{done}/{len(jobs)}] {result.variant}, seed {result.seed}, {result.arm}: {figure}, {result.seconds:.0f} s"
        )

    executor.run(jobs, on_result, lambda running, waiting: None)


def _job(run: PlannedRun, plan: Plan, folder: Path) -> Job:
    names = {
        "suite": plan.suite, "variant": run.variant, "key": run.key, "seed": run.seed, "arm": run.arm,
        "changes": "; ".join(run.changes), "data_hash": plan.data_hash, "tokenizer_hash": plan.tokenizer_hash,
    }  # fmt: skip
    config = encode(run.config)
    assert isinstance(config, dict)
    return Job((folder / "runs" / run.key).resolve(), config, names, run.config.use)


def judge_results(plan: Plan, folder: Path, ledger: Ledger) -> Compared:
    """Judge the results there are; write results.csv."""
    keys = {run.key for run in plan.runs}
    results = tuple(result for key, result in ledger.results.items() if key in keys)
    write_csv(folder / RESULTS, results)
    losses = losses_of(results, "tokens")
    comparisons: list[Comparison] = []
    noise = None
    if BASE in losses and len(losses) > 1:
        comparisons, noise = compare_to_base(losses, BASE)
    return Compared(folder, plan, results, tuple(comparisons), noise)
