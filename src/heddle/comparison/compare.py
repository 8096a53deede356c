"""Compare: train the runs of a suite that are not done yet, and judge all of them."""

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from heddle.comparison.arms import RATE, StepTimes, check_speeds, check_times, next_runs
from heddle.comparison.estimate import announce, expected_seconds
from heddle.comparison.execution import (
    EXECUTORS,
    RUNS,
    Group,
    Job,
    Ledger,
    Limit,
    Result,
    TrainingSlots,
    keep_log,
    remove_checkpoints,
)
from heddle.comparison.pilot import measure_speeds
from heddle.comparison.plan import (
    CONTROL_SAME,
    CONTROLS,
    TOKENS,
    Hashes,
    Plan,
    PlannedRun,
    check_suite,
    make_plan,
    own_code,
    prepare_base,
)
from heddle.comparison.suites import Suite
from heddle.comparison.verdicts import Compared, find_verdicts
from heddle.core import ConfigError, UsageError, encode
from heddle.core.system import lock_folder, read_text, usable_cores

Message = Callable[[str], None]
OFTEN = 2.0  # seconds between two reports of progress


@dataclass(frozen=True)
class Standing:
    """How far a comparison has come."""

    done: int
    runs: int
    training: tuple[tuple[str, int, int, int], ...]  # variant, seed, step, steps


OnStanding = Callable[[Standing], None]


@dataclass(frozen=True)
class Options:
    """How a comparison is run.

    executor: where runs train: local or ray.
    processes: how many side by side; None: one on a GPU, where time is measured, else one for each core.
    at_once: how many of them train at once, while the others compile; None: all.
    controls: whether the two controls are trained too.
    minutes: how long to work at most; runs under way are then saved, and go on next time.
    whole: start only runs that are expected to end within the minutes.
    again: train failed runs again.
    pilot: measure speed and noise only: the base, the base again, and some steps of every variant.
    """

    executor: str = "local"
    processes: int | None = None
    controls: bool = True
    minutes: float | None = None
    whole: bool = False
    again: bool = False
    pilot: bool = False
    at_once: int | None = None

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise ConfigError.unknown("executor", self.executor, list(EXECUTORS))

    @property
    def side_by_side(self) -> int:
        """Return how many runs train at once."""
        return self.processes or (1 if torch.cuda.is_available() else usable_cores())

    @property
    def training_slots(self) -> int:
        """Return how many runs train at once where that is fewer than there are processes; 0: all do."""
        return 0 if self.at_once is None or self.at_once >= self.side_by_side else self.at_once


@dataclass(frozen=True)
class Watcher:
    """Where a comparison tells what it does: lines, and how far it has come."""

    message: Message = lambda text: None
    on_standing: OnStanding = lambda standing: None


SILENT, USUAL = Watcher(), Options()


def run_suite(suite: Suite, folder: Path, options: Options = USUAL, watcher: Watcher = SILENT) -> Compared:
    """Train what a suite still lacks and judge all of it; killed anywhere and run again, it goes on."""
    check_suite(suite)
    if not options.pilot:
        check_times(suite, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, wait=False) as free:  # never waits: this very process may hold it already
        if not free:
            raise UsageError(f"{folder}: another process is running this comparison")
        limit = Limit(None if options.minutes is None else 60 * options.minutes, options.whole)
        queue = _Queue(open_plan(suite, folder), folder, Ledger(folder), options, watcher)
        queue.work(limit)
        return queue.verdicts()


def load_comparison(suite: Suite, folder: Path, controls: bool = True) -> Compared:
    """Judge what a folder holds of a suite, without training anything."""
    if not (folder / RUNS).exists():
        raise UsageError(f"{folder}: holds no runs of a comparison yet")
    check_suite(suite)
    return find_verdicts(open_plan(suite, folder), folder, Ledger(folder).results, StepTimes.read(folder), controls)


def open_plan(suite: Suite, folder: Path) -> Plan:
    """Return the plan of a suite on its data, which are tokenized where they are not yet."""
    base, prepared = prepare_base(suite, folder)
    return make_plan(suite, base, Hashes.of(prepared))


@dataclass
class _Queue:
    """The runs of a comparison and what is done of them."""

    plan: Plan
    folder: Path
    ledger: Ledger
    options: Options
    watcher: Watcher

    def work(self, limit: Limit) -> None:
        """Train what is left, until it is done or time is up."""
        if self.options.again:
            self.ledger.forget_failed()
        if self.options.pilot:
            measure_speeds(self.plan.configs(), self.folder, self.options.side_by_side, limit, self.watcher.message)
        else:
            check_speeds(self.plan, StepTimes.read(self.folder))
        self._announce()
        while (left := self._left()) and not limit.is_over():
            before = len(left)
            self._train(left, limit)
            if len(self._left()) >= before and limit.seconds is not None:  # nothing more was allowed
                break
        if left := self._left():
            self.watcher.message(f"stopped with {len(left)} runs to go; the same command goes on")

    def verdicts(self) -> Compared:
        times, controls = StepTimes.read(self.folder), self.options.controls
        return find_verdicts(self.plan, self.folder, self.ledger.results, times, controls)

    def _runs(self) -> list[PlannedRun]:
        runs = next_runs(self.plan, self.ledger.results, StepTimes.read(self.folder), self.options.controls)
        if not self.options.pilot:
            return runs
        names = (self.plan.suite.base_name, CONTROL_SAME)
        return [run for run in runs if run.variant in names and run.arm == TOKENS]

    def _left(self) -> list[PlannedRun]:
        """Return the runs that are to be trained; one that another arm has trained already is copied from it."""
        left = []
        for run in self._runs():
            if run.key in self.ledger.results:
                continue
            twin = self.ledger.results.get(run.key.replace(f"-{RATE}-", f"-{TOKENS}-"))
            if run.arm == RATE and twin is not None and twin.status == "done":
                self.ledger.add(dataclasses.replace(twin, arm=RATE, key=run.key))
            else:
                left.append(run)
        return left

    def _announce(self) -> None:
        runs, left, times = self._runs(), self._left(), StepTimes.read(self.folder)
        noise = self.verdicts().noise
        for line in announce(self.plan, runs, left, noise.deviation if noise and noise.freedom else None):
            self.watcher.message(line)
        if left:
            many = self.options.side_by_side
            seconds = expected_seconds(left, self.ledger.results, times, many)
            about = (
                "unknown on a GPU until --pilot has measured it" if seconds is None else f"about {in_words(seconds)}"
            )
            self.watcher.message(f"time: {about}, {many} at a time")

    def _train(self, left: Sequence[PlannedRun], limit: Limit) -> None:
        jobs = {run.key: self._job(run, limit) for run in left}
        total = len(self._runs())
        state = {"reported": 0.0, "done": total - len(left)}

        def on_result(result: Result) -> None:
            self.ledger.add(result)
            keep_log(self.folder, jobs[result.key])
            state["done"] += 1
            self._report(result, f"[{state['done']:.0f}/{total}]")

        def on_progress(running: Sequence[Job], queued: int) -> None:
            if time.monotonic() - state["reported"] >= OFTEN:
                state["reported"] = time.monotonic()
                training = tuple((j.names["variant"], j.names["seed"], *steps_of(j)) for j in running)
                self.watcher.on_standing(Standing(int(state["done"]), total, training))

        for job in jobs.values():  # that ended just before a kill
            if (result := job.result()) is not None and not (self.options.again and result.status == "failed"):
                on_result(result)
                remove_checkpoints(job)
        queued = [job for key, job in jobs.items() if key not in self.ledger.results]
        executor = EXECUTORS[self.options.executor](self.options.side_by_side)
        executor.run(self._in_order(queued), limit, on_result, on_progress)

    def _report(self, result: Result, number: str) -> None:
        figure = f"loss {result.loss:.4f}" if result.status == "done" else f"{result.status}: {result.reason}"
        about = f"{result.variant}, seed {result.seed}, {result.arm}"
        self.watcher.message(f"{number} {about}: {figure}, {in_words(result.wall_s)}")

    def _in_order(self, jobs: Sequence[Job]) -> list[Group]:
        """Return the runs by variant: what is built from the base as it is, then the longest, lest one ends late."""
        first = (self.plan.suite.base_name, *CONTROLS)
        found = groups(jobs)
        return sorted(found, key=lambda group: (group[0].names["variant"] not in first, -group[0].cost))

    def _job(self, run: PlannedRun, limit: Limit) -> Job:
        hashes = self.plan.hashes
        names = {
            "suite": self.plan.suite.name, "variant": run.variant, "config_hash": run.config_hash,
            "diff": "; ".join(run.changes), "seed": run.seed, "arm": run.arm, "data_hash": hashes.data,
            "valid_hash": hashes.valid, "tokenizer_hash": hashes.tokenizer, "commit": commit(), "key": run.key,
        }  # fmt: skip
        config = encode(run.config)
        assert isinstance(config, dict)
        place = (self.folder / "runs" / run.key).resolve()
        slots = TrainingSlots(str((self.folder / "slots").resolve()), self.options.training_slots, limit.until)
        use = (*run.config.use, *own_code(run.config))
        return Job(place, config, names, use, run.cost, self.options.side_by_side, slots)


def groups(jobs: Sequence[Job]) -> list[Group]:
    """Return the runs of each variant together: what differs in its seed, rate or steps alone is compiled once."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.names["variant"], []).append(job)
    return list(found.values())


def steps_of(job: Job) -> tuple[int, int]:
    """Return the last step that a run has logged, and how many it has."""
    path = job.run / "metrics.jsonl"
    lines = read_text(path).splitlines() if path.exists() else []
    logged = [line for line in lines if line.startswith('{"step": ')]
    step = int(logged[-1].removeprefix('{"step": ').split(",")[0].rstrip("}")) if logged else 0
    return step, int(job.config["training"]["steps"])


def in_words(seconds: float) -> str:
    """Return a duration: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@cache
def commit() -> str:
    """Return the commit of the library: as the environment says (HEDDLE_COMMIT), or where it is a checkout."""
    if "HEDDLE_COMMIT" in os.environ:
        return os.environ["HEDDLE_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
