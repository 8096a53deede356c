"""Runs of text tasks: rows of a table, each a start with its seeds, in one pool; each test is opened once.

Each learning rate is tried with the first seed; the best on the validation rows is then tested with all seeds, by the
checkpoint of lowest held-out loss. What is in the results is not run again, and what was cut off goes on. The longest
runs begin first.
"""

import json
import multiprocessing
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import commit, device, read_lines
from text_task_chats import chat_settings, grade_chats
from text_task_data import opened

import heddle
from heddle.tasks.evaluation import EvaluationTask, GradedModel, task_named
from heddle.tasks.generation import summarizer
from heddle.tasks.metrics import rouge_each

ENCODER_RATES = (3e-5, 6e-5, 1.2e-4, 2.4e-4)
RATES = {"summarize": (1e-4, 3e-4, 1e-3), "finetune": (3e-5, 1e-4)}  # by recipe; the others have those above
MARGIN = 15.0  # seconds before the end of the time in which no run begins
Line = dict[str, Any]
Overrides = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """How a task is learnt and graded.

    recipe: the recipe, which is also the name of the evaluation.
    length: tokens of a row.
    epochs: how often the training rows are read.
    batch: rows of a step.
    checks: validations of a run, each with a checkpoint.
    metric: what chooses among settings, as metrics.jsonl calls it; the loss is the lower the better.
    mean: whether its metrics are means over examples, so that they have an interval.
    columns: the fields of a row.
    more: settings beside those.
    """

    recipe: str
    length: int
    epochs: int
    batch: int = 64
    checks: int = 6
    metric: str = "accuracy"
    mean: bool = True
    columns: dict[str, str] = field(default_factory=lambda: {"label": "label"})
    more: dict[str, Any] = field(default_factory=dict)


CHATS = ("samsum_chat", "dialogue_chat")  # by a language model: see text_task_chats.py
PAIR = {"label": "label", "pair": "pair"}
TASKS = {
    "imdb": Task("classify", 512, 3, batch=32, checks=4),
    "sst2": Task("classify", 64, 2),
    "sst5": Task("classify", 64, 5, checks=5),
    "trec": Task("classify", 48, 12),
    "ag": Task("classify", 128, 6),
    "sick": Task("classify", 64, 10, columns=PAIR),
    "next": Task("classify", 128, 2, checks=4, columns=PAIR),
    "ner": Task("tag", 128, 6, metric="entity_f1", mean=False, columns={"text": "tokens", "tags": "tags"}),
    "squad": Task("answer", 384, 4, batch=32, checks=4, metric="span_f1", columns={}),
    "samsum": Task(
        "summarize",
        96,
        10,
        checks=5,
        metric="validation_loss",
        columns={"text": "text", "target": "summary"},
        more={"rows.source_length": 512, "training.optimizer.weight_decay": 0.01},
    ),
    **{task: Task("finetune", 1024, 3, batch=16, checks=3, metric="validation_loss") for task in CHATS},
}


@dataclass(frozen=True)
class Start:
    """A row of the table: where its runs begin.

    label: its name.
    tasks: what it is fine-tuned on.
    init: the model that each seed begins from; None: random weights.
    rates: learning rates; None: those of the task.
    overrides: settings of its runs.
    """

    label: str
    tasks: tuple[str, ...]
    init: Mapping[int, str | None]
    rates: tuple[float, ...] | None = None
    overrides: Overrides = field(default_factory=dict)

    def rates_of(self, task: str) -> tuple[float, ...]:
        """Return the rates to try on a task."""
        return self.rates or RATES.get(TASKS[task].recipe, ENCODER_RATES)

    def job(self, out: Path, task: str, rate: float, seed: int, tested: bool = False) -> "Job":
        """Return one of its runs."""
        return Job(out, self.label, task, rate, seed, self.init[seed], self.overrides, tested)


@dataclass(frozen=True)
class Job:
    """One run: a task at a rate with a seed; `tested` opens the test rows."""

    out: Path
    label: str
    task: str
    rate: float
    seed: int
    init: str | None
    overrides: Overrides
    tested: bool = False

    @property
    def key(self) -> tuple[str, str, float, int]:
        """Return what results are found by."""
        return self.label, self.task, self.rate, self.seed

    @property
    def name(self) -> str:
        """Name the run."""
        return f"{self.label}-{self.task}-{self.rate:g}-{self.seed}"

    @property
    def folder(self) -> Path:
        """Return where the run lies."""
        return self.out / "runs" / self.name

    @property
    def cost(self) -> int:
        """Return how many tokens are read at most, by which the longest runs begin first."""
        return TASKS[self.task].epochs * count(self.out / self.task / "train.jsonl.xz") * TASKS[self.task].length


@cache
def count(path: Path) -> int:
    """Count the rows of a file."""
    return sum(1 for _ in opened(path))


def source(job: Job, part: str) -> dict[str, Any]:
    """Return the rows of a part, and how they are read."""
    columns = TASKS[job.task].columns
    path = str(job.out / job.task / f"{part}.jsonl.xz")
    return {"kind": "jsonl", "path": path, **columns} if columns else {"kind": "squad", "path": path}


def examples(job: Job, batch: int) -> dict[str, Any]:
    """Return the settings of rows that each hold an example."""
    data = {"data.sources": [source(job, "train")], "data.split": {"kind": "file", "source": source(job, "valid")}}
    return data | {"rows.length": TASKS[job.task].length, "rows.batch": batch}


def settings_of(job: Job) -> dict[str, Any]:
    """Return the settings of a run."""
    task = TASKS[job.task]
    chats = chat_settings(job.task, job.out) if job.task in CHATS else {}
    batch = int(job.overrides.get("training.batch", chats.get("training.batch", task.batch)))
    steps = max(1, task.epochs * count(job.out / job.task / "train.jsonl.xz") // batch)
    steps = int(job.overrides.get("training.steps", chats.get("training.steps", steps)))
    every = max(1, steps // task.checks)
    return {
        **(chats or examples(job, batch)),
        "init": job.init,
        "training.batch": batch,
        "training.steps": steps,
        "training.schedule.warmup": min(steps - 1, max(1, steps // 10)),
        "training.optimizer.learning_rate": job.rate,
        "training.average_last": 1,
        "every.validate": every,
        "every.save": every,
        "every.sample": 10_000_000,
        "keep": {"last": 1, "best": 1, "background": True},  # some hundred MB each, beside the steps
        "hardware.compile": "off",  # rows of many lengths, in runs of a minute
        "name": job.name,
        "seed": job.seed,
        **task.more,
        **job.overrides,
    }


def run_job(job: Job, until: float) -> Line | None:
    """Train, or go on; return the result, or None where the time is over before it is there."""
    left = until - time.time()
    if left < MARGIN:
        return None
    limit = {} if left > 1e6 else {"stop.minutes": round((left - MARGIN / 2) / 60, 3)}
    if (job.folder / "checkpoints").exists():
        run = heddle.train(job.folder, overrides=limit, progress=False)
    else:  # none, or one that ended before its first checkpoint
        shutil.rmtree(job.folder, ignore_errors=True)
        own = settings_of(job) | limit
        run = heddle.train(TASKS[job.task].recipe, overrides=own, runs=job.out / "runs", progress=False)
    if run.stopped is not None:
        return None
    line = {"label": job.label, "task": job.task, "rate": job.rate, "seed": job.seed, "valid": _validation(job)}
    line |= {"steps": run.step, "run": job.name}
    return line | test(job) if job.tested else line


def _validation(job: Job) -> float:
    """Return the metric at the lowest held-out loss, the higher the better."""
    rows = [json.loads(line) for line in (job.folder / "metrics.jsonl").read_text().splitlines()]
    best = min((row for row in rows if "validation_loss" in row), key=lambda row: row["validation_loss"])
    found = float(best[TASKS[job.task].metric])
    return -found if TASKS[job.task].metric == "validation_loss" else found


def test(job: Job) -> Line:
    """Return the metrics of the test rows by a run's best checkpoint, with intervals where they are means.

    Of summaries also those of the validation rows, by which one may choose between kinds of models.
    """
    lm = heddle.load(job.folder, best=True)
    if job.task in CHATS:
        metrics, intervals = grade_chats(job.task, job.out, lm)
        return {"test": metrics, "intervals": intervals}
    evaluation = task_named(TASKS[job.task].recipe)
    summaries = TASKS[job.task].recipe == "summarize"
    line: Line = {}
    for part in ("valid", "test") if summaries else ("test",):
        examples = evaluation.examples(str(job.out / job.task / f"{part}.jsonl.xz"))
        found: Any
        if summaries:  # as the evaluation does it, with more texts at once
            written = summarizer(lm.model, lm.tokenizer, lm.origin.settings, {}, batch=128).run(
                [one.text for one in examples]
            )
            found = rouge_each([one.text for one in written], [one.target for one in examples])
        else:
            found = evaluation.predict(GradedModel(lm.model, lm.tokenizer, lm.origin.settings), examples)
        metrics = evaluation.metrics(found, examples)
        if part == "valid":
            line["valid_metrics"] = metrics
        else:
            intervals = _intervals(evaluation, found, examples) if TASKS[job.task].mean else {}
            line |= {"test": metrics, "intervals": intervals}
    return line


def _intervals(task: EvaluationTask, found: Sequence[Any], examples: Sequence[Any]) -> dict[str, list[float]]:
    """Return 95 % bootstrap intervals of means over examples; macro F1 is none."""
    each = [task.metrics([one], [example]) for one, example in zip(found, examples, strict=True)]
    draw, intervals = np.random.default_rng(0), {}
    for name in each[0]:
        if name != "macro_f1":
            scores = np.array([one[name] for one in each])
            means = [scores[draw.integers(0, len(scores), len(scores))].mean() for _ in range(1000)]
            intervals[name] = [round(float(end), 5) for end in np.percentile(means, (2.5, 97.5))]
    return intervals


def attempt(job: Job, until: float) -> Line | None:
    """Run a job in a process of its own; a failure costs the others nothing."""
    torch.set_num_threads(1)
    try:
        return run_job(job, until)
    except Exception as error:
        traceback.print_exc()
        return {"failed": job.name, "error": f"{type(error).__name__}: {str(error)[:300]}"}


class Results:
    """The lines of OUT/results.jsonl, by job."""

    def __init__(self, path: Path) -> None:
        self.path, self.known = path, dict[tuple[Any, ...], Line]()
        self.failed = set[tuple[Any, ...]]()  # in this call
        for line in read_lines(path):
            self._keep(line)

    def _keep(self, line: Line) -> None:
        self.known[line["label"], line["task"], line["rate"], line["seed"]] = line

    def add(self, line: Line) -> None:
        """Append a line."""
        line = line | {"commit": commit(), "device": device()}
        self._keep(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def missing(self, job: Job) -> bool:
        """Tell whether a job is still to be done."""
        line = self.known.get(job.key)
        return line is None or (job.tested and "test" not in line)


def best_job(results: Results, start: Start, task: str, out: Path) -> Job | None:
    """Return the first seed's run at the best rate, once all rates are known.

    A rate whose run has failed is left out, so that it does not keep the others of its task from their tests.
    """
    first = next(iter(start.init))
    make = [start.job(out, task, rate, first) for rate in start.rates_of(task)]
    make = [job for job in make if job.key not in results.failed] or make
    if any(results.missing(job) for job in make):
        return None
    return max(make, key=lambda job: float(results.known[job.key]["valid"]))


def next_jobs(results: Results, starts: Sequence[Start], out: Path) -> Iterator[Job]:
    """Yield what can be done now: each rate with the first seed; once all are known, the tests at the best one."""
    for start in starts:
        first = next(iter(start.init))
        for task in start.tasks:
            best = best_job(results, start, task, out)
            if best is None:
                jobs = [start.job(out, task, rate, first) for rate in start.rates_of(task)]
            else:
                jobs = [start.job(out, task, best.rate, seed, tested=True) for seed in start.init]
            yield from (job for job in jobs if results.missing(job) and job.key not in results.failed)


def tidy(results: Results, starts: Sequence[Start], out: Path) -> None:
    """Remove the checkpoints of runs that nothing opens again: those tested, and those at a rate that lost."""
    for start in starts:
        for task in start.tasks:
            best = best_job(results, start, task, out)
            for seed in start.init if best else ():
                for rate in start.rates_of(task):
                    job = start.job(out, task, rate, seed)
                    tested = "test" in results.known.get(job.key, {})
                    if best and (tested or rate != best.rate):
                        shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)


def run_starts(out: Path, starts: Sequence[Start], processes: int, minutes: float | None, keep: bool = True) -> None:
    """Keep so many processes busy until all rows are done or the time is over; without `keep`, tidy up behind them."""
    until = time.time() + 60 * minutes if minutes else 1e18
    results, failed = Results(out / "results.jsonl"), set[tuple[Any, ...]]()
    running: dict[Future[Line | None], Job] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        while True:
            busy = {job.key for job in running.values()} | failed
            ready = [job for job in next_jobs(results, starts, out) if job.key not in busy]
            ready.sort(key=lambda job: (-job.tested, -job.cost))  # tests first: what is whole counts
            for job in ready[: processes - len(running)]:
                running[pool.submit(attempt, job, until)] = job
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                job, line = running.pop(done), done.result()
                if line is None or "failed" in line:
                    failed.add(job.key)
                    results.failed |= set() if line is None or job.tested else {job.key}
                    print(f"{job.name}: " + ("cut off, to be resumed" if line is None else line["error"]), flush=True)
                else:
                    results.add(line)
                    print(json.dumps(line), flush=True)
            if not keep:
                tidy(results, starts, out)
