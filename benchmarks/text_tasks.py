"""Classification from scratch: pre-train an encoder on plain text, fine-tune it on five published tasks, test once.

    python benchmarks/text_tasks.py tables DATA OUT              JSON lines of each task, and the text to pre-train on
    python benchmarks/text_tasks.py pretrain OUT [KEY=VALUE...]  OUT/runs/encoder, masked language modelling
    python benchmarks/text_tasks.py finetune OUT [--tasks ...] [--rates ...] [--seeds ...] [--init MODEL] [KEY=VALUE...]

DATA holds the folders cls-imdb, cls-sst2, cls-sst5, cls-trec, cls-agnews-subset, lm-gutenberg and lm-wikipedia-sample.
For each task the learning rate is chosen on the validation rows with the first seed; the test rows are opened once for
each seed, by the checkpoint of lowest held-out loss. One JSON line a run goes to OUT/results.jsonl; what is there is
not run again. No test text is used in pre-training.
"""

import argparse
import gzip
import hashlib
import json
import lzma
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from entry_point import run_main
from results import commit, device

import heddle
from heddle.core.system import parse_overrides

Row = tuple[str, str]  # text, label
RATES = (2e-5, 5e-5, 1e-4)
LENGTHS = {"imdb": 512, "ag": 128, "sst2": 64, "sst5": 64, "trec": 48}
EPOCHS = {"imdb": 4, "ag": 6, "sst2": 2, "sst5": 5, "trec": 12}
BATCH = 32


def opened(path: Path) -> Iterator[str]:
    """Yield the lines of a compressed file; a line ends with a newline and nothing else."""
    opener = lzma.open if path.suffix == ".xz" else gzip.open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from (line.rstrip("\n") for line in file)


def tab(path: Path) -> list[Row]:
    """Read text, tab, label."""
    return [(text, label) for text, _, label in (line.rpartition("\t") for line in opened(path)) if text]


def label_first(path: Path) -> list[Row]:
    """Read label, space, text; of TREC's labels the coarse one."""
    return [(text, label.partition(":")[0]) for label, _, text in (line.partition(" ") for line in opened(path))]


def reviews(path: Path) -> list[Row]:
    """Read IMDB's JSON lines; HTML's line breaks become spaces."""
    rows = (json.loads(line) for line in opened(path))
    return [(row["text"].replace("<br />", " "), row["label"]) for row in rows]


def carve(rows: list[Row], count: int) -> tuple[list[Row], list[Row]]:
    """Split off validation rows by a hash of their text, so that equal texts stay on one side."""
    ordered = sorted(rows, key=lambda row: hashlib.sha256(row[0].encode()).digest())
    cut = len(ordered) - count
    while cut and ordered[cut - 1][0] == ordered[cut][0]:
        cut -= 1
    return ordered[:cut], ordered[cut:]


def tables(data: Path) -> dict[str, Callable[[], dict[str, list[Row]]]]:
    """Return how each task is read: rows to learn from, to choose by, and to test with."""

    def parted(rows: list[Row], count: int, test: list[Row]) -> dict[str, list[Row]]:
        train, valid = carve(rows, count)
        return {"train": train, "valid": valid, "test": test}

    def sst(folder: Path, read: Callable[[Path], list[Row]]) -> dict[str, list[Row]]:
        parts = {"train": "train", "valid": "dev", "test": "test"}
        return {name: read(folder / f"sentiment-{part}.tsv.gz") for name, part in parts.items()}

    imdb, trec, ag = data / "cls-imdb", data / "cls-trec", data / "cls-agnews-subset"
    return {
        "imdb": lambda: parted(reviews(imdb / "train.jsonl.xz"), 2500, reviews(imdb / "test.jsonl.xz")),
        "sst2": lambda: sst(data / "cls-sst2", tab),
        "sst5": lambda: sst(data / "cls-sst5", label_first),
        "trec": lambda: parted(label_first(trec / "train_5500.label.gz"), 500, label_first(trec / "TREC_10.label.gz")),
        "ag": lambda: parted(tab(ag / "train-subset.tsv.xz"), 1000, tab(ag / "test.tsv.xz")),
    }


def write(path: Path, rows: Iterator[dict[str, str]]) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8", preset=2) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_tables(data: Path, out: Path) -> None:
    """Write each task's rows, and the text of pre-training: books, articles and the tasks' own training text."""
    for name, read in tables(data).items():
        parts = read()
        for part, rows in parts.items():
            write(out / name / f"{part}.jsonl.xz", ({"text": text, "label": label} for text, label in rows))
        print(name, {part: len(rows) for part, rows in parts.items()})
        write(out / "text" / f"{name}.jsonl.xz", ({"text": text} for text, _ in parts["train"]))
    for folder in ("lm-gutenberg", "lm-wikipedia-sample"):
        for path in sorted((data / folder).glob("train-*.jsonl.xz")):
            texts = ({"text": str(json.loads(line)["text"])} for line in opened(path))
            write(out / "text" / f"{folder}-{path.name}", texts)


def pretrain(out: Path, overrides: dict[str, Any]) -> None:
    """Train the encoder, or go on with it."""
    folder = out / "runs" / "encoder"
    if folder.exists():
        heddle.train(folder, overrides=overrides)
        return
    shape = {"model.layers": 12, "model.width": 512, "model.heads": 8, "tokenizer.vocab": 16384}
    rows = {"rows.length": 512, "training.batch": 64}  # long rows: building a row costs about the same for any length
    settings = rows | {"name": "encoder", "training.steps": 6000, "every.save": 1000, "objective.unit": "token"}
    settings |= {"training.optimizer.learning_rate": 4e-4, "training.schedule.warmup": 500}
    heddle.train("bert", data=out / "text", overrides=shape | settings | overrides, runs=out / "runs")


def finetune(out: Path, task: str, rate: float, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune on a task; return what validation and, where asked for, the test rows give."""
    name = f"{given.label}-{task}-{rate:g}-{seed}"
    count = sum(1 for _ in opened(out / task / "train.jsonl.xz"))
    steps = max(1, EPOCHS[task] * count // BATCH)
    split = {"kind": "file", "source": {"kind": "jsonl", "path": str(out / task / "valid.jsonl.xz"), "label": "label"}}
    source = {"kind": "jsonl", "path": str(out / task / "train.jsonl.xz"), "label": "label"}
    own = {
        "data.sources": [source],
        "data.split": split,
        "init": given.init or str(out / "runs" / "encoder"),
        "rows.length": LENGTHS[task],
        "training.batch": BATCH,
        "training.steps": steps,
        "training.schedule.warmup": max(1, steps // 10),
        "training.optimizer.learning_rate": rate,
        "every.validate": max(1, steps // (2 * EPOCHS[task])),
        "every.save": max(1, steps // (2 * EPOCHS[task])),
        "every.sample": steps,
        "name": name,
        "seed": seed,
    }
    run = heddle.train("classify", overrides=own | given.overrides, runs=out / "runs", progress=False)
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    measured = [row for row in rows if "validation_loss" in row]
    best = min(measured, key=lambda row: row["validation_loss"])
    return {"task": task, "rate": rate, "seed": seed, "steps": steps, "valid": best["accuracy"], "run": name}


def test(out: Path, line: dict[str, Any]) -> float:
    """Return the accuracy over the test rows of a run's best checkpoint."""
    lm = heddle.load(out / "runs" / line["run"], best=True)
    rows = [json.loads(row) for row in opened(out / line["task"] / "test.jsonl.xz")]
    answers = lm.classify([row["text"] for row in rows])
    right = [bool(answer.label == row["label"]) for answer, row in zip(answers, rows, strict=True)]
    return sum(right) / len(right)


def finetune_all(out: Path, given: argparse.Namespace) -> None:
    """Choose a rate for each task, then train and test with each seed; print mean and deviation."""
    path = out / "results.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def result(task: str, rate: float, seed: int, tested: bool) -> dict[str, Any]:
        asked = (given.label, task, rate, seed)
        found = [d for d in done if (d["label"], d["task"], d["rate"], d["seed"]) == asked]
        line = found[-1] if found else {"label": given.label} | finetune(out, task, rate, seed, given)
        if tested and "test" not in line:
            line = line | {"test": test(out, line)}
        if not found or line is not found[-1]:
            line = line | {"commit": commit(), "device": device()}
            done.append(line)
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line

    for task in given.tasks:
        tried = [result(task, rate, given.seeds[0], False) for rate in given.rates]
        rate = max(tried, key=lambda line: line["valid"])["rate"]
        scores = [100 * result(task, rate, seed, True)["test"] for seed in given.seeds]
        spread = f" +- {statistics.stdev(scores):.2f}" if len(scores) > 1 else " (provisional)"
        print(f"{task}: {statistics.mean(scores):.2f}{spread} at {rate:g}", flush=True)


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tables", "pretrain", "finetune"))
    parser.add_argument("folders", nargs="+", help="DATA OUT, or OUT; then KEY=VALUE")
    parser.add_argument("--tasks", nargs="+", choices=list(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--init", help="a model to begin from; default: OUT/runs/encoder")
    parser.add_argument("--label", default="scratch", help="the name of this row of the table")
    given = parser.parse_intermixed_args()
    given.overrides = dict(parse_overrides([word for word in given.folders if "=" in word], {}))
    folders = [Path(word) for word in given.folders if "=" not in word]
    if len(folders) != (2 if given.what == "tables" else 1):
        parser.error("tables takes DATA and OUT, the others OUT")
    if given.what == "tables":
        write_tables(*folders)
    elif given.what == "pretrain":
        pretrain(folders[0], given.overrides)
    else:
        finetune_all(folders[0], given)


if __name__ == "__main__":
    run_main(main)
