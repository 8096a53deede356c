"""Running a study: the search for rates, the grid, and the larger runs, through the executors and the ledger."""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from heddle.comparison.arms import StepTimes
from heddle.comparison.compare import OFTEN, SILENT, USUAL, Options, Standing, Watcher, commit, in_words, steps_of
from heddle.comparison.estimate import expected_seconds
from heddle.comparison.execution import EXECUTORS, RUNS, Job, Ledger, Limit, Result, remove_checkpoints, write_csv
from heddle.comparison.execution import RESULTS as RESULTS_CSV
from heddle.comparison.pilot import measure_speeds
from heddle.comparison.plan import Hashes, own_code
from heddle.comparison.scaling.cells import GRID, CellRun, Grid, Profile, Text, make_grid, prepare_grid
from heddle.comparison.scaling.laws import ArchitectureLaw, Unit, fit_architecture
from heddle.comparison.scaling.prediction import (
    Larger,
    check_before_test,
    larger_cell,
    larger_runs,
    read_grade,
    read_prediction,
    write_grade,
    write_prediction,
)
from heddle.comparison.scaling.rates import RateRule, find_rule, search_runs
from heddle.comparison.scaling.study import Study
from heddle.core import DataError, UsageError, encode, replace
from heddle.core.system import lock_folder, write_json
from heddle.training import guess_vocab

LAWS = "laws.json"
UNLIMITED = 10**18  # tokens, before the data are read


@dataclass(frozen=True)
class Scaled:
    """What a folder holds of a study: runs, laws, and the prediction with its grade where there are any."""

    grid: Grid
    folder: Path
    results: list[Result]
    runs: tuple[CellRun, ...]
    left: int
    unit: Unit
    laws: tuple[ArchitectureLaw, ...]
    prediction: dict[str, Any] | None = None
    grade: dict[str, Any] | None = None


def run_study(study: Study, folder: Path, options: Options = USUAL, watcher: Watcher = SILENT) -> Scaled:
    """Train what the grid of a study still lacks, and fit it; killed anywhere and run again, it goes on."""
    return _run(study, folder, options, watcher, larger=False)


def train_larger(study: Study, folder: Path, options: Options = USUAL, watcher: Watcher = SILENT) -> Scaled:
    """Train the larger runs of which the loss was predicted, and grade the prediction."""
    return _run(study, folder, options, watcher, larger=True)


def _run(study: Study, folder: Path, options: Options, watcher: Watcher, larger: bool) -> Scaled:
    check_study(study)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, wait=False) as free:
        if not free:
            raise UsageError(f"{folder}: another process is running this study")
        limit = Limit(None if options.minutes is None else 60 * options.minutes, options.whole)
        queue = _Queue(prepare_grid(study, folder), folder, Ledger(folder), options, watcher)
        queue.work(limit, larger)
        return queue.scaled(write=True)


def load_study(study: Study, folder: Path) -> Scaled:
    """Fit what a folder holds of a study, without training anything."""
    if not (folder / RUNS).exists():
        raise UsageError(f"{folder}: holds no runs of a study of scaling yet")
    return _Queue(prepare_grid(study, folder), folder, Ledger(folder), USUAL, SILENT).scaled(write=True)


def predict_larger(study: Study, folder: Path, command: str) -> Scaled:
    """Predict the loss of the larger runs from a finished grid; write it down before they are trained."""
    check_study(study)
    found = load_study(study, folder)
    if found.left:
        raise UsageError(f"{folder}: want a finished grid to predict from, got {found.left} runs to go")
    with lock_folder(folder, wait=False) as free:
        if not free:
            raise UsageError(f"{folder}: another process is running this study")
        results = Ledger(folder).results
        larger = _larger(found, _rules(found.grid, results))
        return dataclasses.replace(found, prediction=write_prediction(folder, larger, results, found.unit, command))


def describe_study(study: Study, folder: Path) -> list[str]:
    """Return the plan of a study in words; its data are tokenized where they are not yet."""
    check_study(study)
    return describe_grid(prepare_grid(study, folder))


def check_study(study: Study) -> None:
    """Refuse what cannot be laid out, before the data are read: with about as many tokens as there will be."""
    make_grid(study, Text(Hashes("", "", ""), guess_vocab(study.first), UNLIMITED), study.first)


def _rules(grid: Grid, results: dict[str, Result]) -> dict[str, RateRule | None]:
    return {one.architecture.name: find_rule(grid, one, results) for one in grid.profiles}


def _larger(scaled: Scaled, rules: dict[str, RateRule | None]) -> list[Larger]:
    """Return the larger runs of all architectures."""
    found = []
    for law in scaled.laws:
        rule = rules[law.name]
        if law.fit is None or rule is None:
            raise UsageError(f"{law.name}: want a law to predict from, got none: {law.reason}")
        found.append(Larger(law, tuple(larger_runs(scaled.grid, larger_cell(scaled.grid, law), rule))))
    return found


@dataclass
class _Queue:
    """The runs of a study and what is done of them."""

    grid: Grid
    folder: Path
    ledger: Ledger
    options: Options
    watcher: Watcher
    larger: tuple[CellRun, ...] = ()
    done: int = field(default=0)

    def work(self, limit: Limit, larger: bool) -> None:
        """Train what is left, until it is done or time is up."""
        if self.options.again:
            self.ledger.forget_failed()
        if larger:
            self._add_larger()
        for line in describe_grid(self.grid):
            self.watcher.message(line)
        if self.options.pilot:
            configs = {cell.variant: cell.base for one in self.grid.profiles for cell in one.cells}
            measure_speeds(configs, self.folder, self.options.side_by_side, limit, self.watcher.message)
        self._announce()
        while not self.options.pilot and (left := self._left()) and not limit.is_over():
            before = {run.key for run in left}
            self._train(left, limit)
            if {run.key for run in self._left()} == before:  # nothing more was allowed
                break
        if left := self._left():
            self.watcher.message(f"stopped with {len(left)} runs to go; the same command goes on")

    def scaled(self, write: bool) -> Scaled:
        """Fit what is done; with `write`, also grade what is tested and write results.csv and laws.json."""
        results = self.ledger.results
        unit, laws = Unit.of(list(results.values())), []
        for profile in self.grid.profiles:
            rule = find_rule(self.grid, profile, results)
            laws.append(fit_architecture(self.grid, profile, self._of(profile), results, rule.basis if rule else ""))
        prediction = read_prediction(self.folder)
        grade = read_grade(self.folder)
        if write:
            write_csv(self.folder / RESULTS_CSV, results.values())
            write_json(self.folder / LAWS, {"unit": unit.name, "laws": {law.name: law.plain() for law in laws}})
            if prediction is not None:
                grade = write_grade(self.folder, prediction, results, unit)
        runs, kept = tuple(self._runs()), [one for one in results.values()]
        return Scaled(self.grid, self.folder, kept, runs, len(self._left()), unit, tuple(laws), prediction, grade)

    def _add_larger(self) -> None:
        scaled = self.scaled(write=False)
        if scaled.left:
            raise UsageError(f"{self.folder}: want a finished grid, got {scaled.left} runs to go")
        found = _larger(scaled, _rules(self.grid, self.ledger.results))
        check_before_test(self.folder, found, self.ledger.results)
        self.larger = tuple(run for one in found for run in one.runs)

    def _of(self, profile: Profile) -> list[CellRun]:
        """Return the runs of one architecture that can be named by now: its grid, once its rates are known."""
        rule = find_rule(self.grid, profile, self.ledger.results)
        if rule is None:
            return search_runs(self.grid, profile, self.ledger.results)
        runs = search_runs(self.grid, profile, self.ledger.results)
        repeated = profile.repeated
        for cell in profile.cells:
            seeds = range(self.grid.study.scale.seeds if cell in repeated else 1)
            runs += self.grid.runs(cell, GRID, seeds, rule.at(cell.shape.width))
        return runs

    def _runs(self) -> list[CellRun]:
        return [*(run for profile in self.grid.profiles for run in self._of(profile)), *self.larger]

    def _left(self) -> list[CellRun]:
        return [run for run in self._runs() if run.key not in self.ledger.results]

    def _announce(self) -> None:
        runs, left = self._runs(), self._left()
        stage = "larger" if self.larger else "search and grid" if any(r.run.arm == GRID for r in runs) else "search"
        flops = sum(run.run.cost for run in left)
        self.watcher.message(f"{len(runs)} runs ({stage}), {len(left)} to go, {flops:.3g} FLOPs")
        if left:
            many = self.options.side_by_side
            queued = self._queued_cost()
            seconds = self._seconds(left)
            more = "" if not queued or seconds is None else f", then about {in_words(seconds * queued / flops)} more"
            about = "unknown on a GPU until some runs are done" if seconds is None else f"about {in_words(seconds)}"
            self.watcher.message(f"time: {about}{more}, {many} at a time")

    def _queued_cost(self) -> float:
        """Return about how many FLOPs the grid has whose rates are not known yet."""
        queued = [one for one in self.grid.profiles if find_rule(self.grid, one, self.ledger.results) is None]
        return sum(cell.flops for profile in queued for cell in profile.cells)

    def _seconds(self, left: Sequence[CellRun]) -> float | None:
        """Return how long runs will take: by the pilot, by runs that are done, or by some steps on a CPU."""
        plain = [dataclasses.replace(one.run, config=_with_steps(one)) for one in left]
        plain.sort(key=lambda run: run.cost, reverse=True)
        times, many = StepTimes.read(self.folder), self.options.side_by_side
        known = [one for one in self.ledger.results.values() if one.status == "done" and one.wall_s]
        if known and any(times.find(run.config) is None for run in plain):  # processes side by side included
            pace = statistics.median(one.wall_s / one.steps for one in known)
            return sum(pace * run.config.training.steps for run in plain) / many
        return expected_seconds(plain, self.ledger.results, times, many)

    def _train(self, left: Sequence[CellRun], limit: Limit) -> None:
        jobs = {run.key: self._job(run) for run in left}
        total, self.done = len(self._runs()), len(self._runs()) - len(left)
        reported = [0.0]

        def on_result(result: Result) -> None:
            if result.key not in jobs:
                raise DataError(f"{self.folder}: a result of no run of this study: {result.key}")
            self.ledger.add(result)
            self.done += 1
            figure = f"loss {result.loss:.4f}" if result.status == "done" else f"{result.status}: {result.reason}"
            about = f"{result.variant}, {result.arm}, seed {result.seed}, {result.tokens:,} tokens"
            self.watcher.message(f"[{self.done}/{total}] {about}: {figure}, {in_words(result.wall_s)}")

        def on_progress(running: Sequence[Job], queued: int) -> None:
            if time.monotonic() - reported[0] >= OFTEN:
                reported[0] = time.monotonic()
                training = tuple((j.names["variant"], j.names["seed"], *steps_of(j)) for j in running)
                self.watcher.on_standing(Standing(self.done, total, training))

        for job in jobs.values():  # that ended just before a kill
            if (result := job.result()) is not None and not (self.options.again and result.status == "failed"):
                on_result(result)
                remove_checkpoints(job)
        queued = [run for run in left if run.key not in self.ledger.results]
        executor = EXECUTORS[self.options.executor](self.options.side_by_side)
        executor.run(_groups(queued, jobs, self.options.side_by_side), limit, on_result, on_progress)

    def _job(self, one: CellRun) -> Job:
        run, hashes = one.run, self.grid.text.hashes
        names = {
            "suite": f"scale {self.grid.study.name}", "variant": run.variant, "config_hash": run.config_hash,
            "diff": "; ".join(run.changes), "seed": run.seed, "arm": run.arm, "data_hash": hashes.data,
            "valid_hash": hashes.valid, "tokenizer_hash": hashes.tokenizer, "commit": commit(), "key": run.key,
        }  # fmt: skip
        config = encode(run.config)
        assert isinstance(config, dict)
        place = (self.folder / "runs" / run.key).resolve()
        return Job(place, config, names, (*run.config.use, *own_code(run.config)), run.cost, self.options.side_by_side)


def _with_steps(one: CellRun) -> Any:
    base = one.cell.base
    return replace(base, training=replace(base.training, steps=one.cell.steps))


def _groups(left: Sequence[CellRun], jobs: dict[str, Job], processes: int) -> list[list[Job]]:
    """Return runs for one process each, the longest first: where shapes are compiled, those of one shape.

    On a CPU nothing is compiled, and starting a process takes longer than a small run: as many groups as processes.
    """
    found: dict[Any, list[CellRun]] = {}
    for number, run in enumerate(sorted(left, key=lambda run: -run.run.cost)):
        found.setdefault(run.run.variant if torch.cuda.is_available() else number % processes, []).append(run)
    ordered = sorted(found.values(), key=lambda runs: -sum(run.run.cost for run in runs))
    return [[jobs[run.key] for run in runs] for runs in ordered]


def describe_grid(grid: Grid) -> list[str]:
    """Return the plan in words: budgets, sizes with their tokens, and what is left out."""
    lines = [f"text: one epoch is {grid.text.tokens:,} tokens, a vocabulary of {grid.text.vocab:,}"]
    for profile in grid.profiles:
        lines.append(f"{profile.architecture.name}: {len(profile.cells)} sizes and budgets")
        for budget in profile.budgets:
            cells = profile.at(budget)
            sizes = ", ".join(f"{cell.shape} {_short(cell.parameters)}/{_short(cell.tokens)}" for cell in cells)
            lines.append(f"  {budget:.3g} FLOPs (layers x width, parameters/tokens): {sizes}")
        lines += [f"  left out: {reason}" for reason in profile.left_out]
    return lines


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"
