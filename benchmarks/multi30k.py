"""Train translators on Multi30k, several seeds each, and score their translations of the test sets.

    python benchmarks/multi30k.py DATA RESULTS [--recipes translate ...] [--seeds 0 1 2] [--at-once N] [key=value ...]

DATA holds train, val and test files of two languages (train.en.gz, val.de.gz, test_2016_flickr.en.gz, ...). Each run is
a child process of `heddle train`, then of `heddle translate --reference`, so that what is scored is what a user gets.
RESULTS keeps the runs, the translations and results.jsonl; a table of means over seeds is printed at the end.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entry_point import run_main
from sweep import stop_if_failed

HEDDLE = [sys.executable, "-m", "heddle"]
RECIPES = ("translate", "translate_attention", "translate_lstm")
TESTS = ("test_2016_flickr", "test_2017_flickr")


@dataclass(frozen=True)
class Bench:
    """Where everything is, which languages, and how to search."""

    folder: Path
    source: str
    target: str
    words: tuple[str, ...]  # key=value, for every run
    search: tuple[str, ...]  # options of heddle translate

    def run(self, recipe: str, seed: int) -> dict[str, Any]:
        """Train one model and score it on every test set."""
        name = f"{recipe}-s{seed}"
        row: dict[str, Any] = {"recipe": recipe, "seed": seed}
        start = time.perf_counter()
        words = [f"name={name}", f"seed={seed}", *self._data(), *self.words]
        row["code"] = self._child(["train", recipe, *words], f"{name}.log").returncode
        row["seconds"] = round(time.perf_counter() - start, 1)
        if row["code"]:
            return row
        lines = [json.loads(line) for line in (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        row["held_out"] = min(line["validation_loss"] for line in lines if "validation_loss" in line)
        return row | {test: self._score(name, test) for test in TESTS if (self.folder / f"{test}.en").exists()}

    def _data(self) -> list[str]:
        sides = {"source": self.source, "target": self.target}
        train = {"kind": "parallel"} | {side: str(self.folder / f"train.{end}") for side, end in sides.items()}
        valid = {"kind": "parallel"} | {side: str(self.folder / f"val.{end}") for side, end in sides.items()}
        return [f"data.sources={json.dumps([train])}", f"data.split={json.dumps({'kind': 'file', 'source': valid})}"]

    def _score(self, name: str, test: str) -> dict[str, Any]:
        """Translate a test set; return BLEU without regard to case, as the recipes' vocabulary has none."""
        files = [f"{test}.{self.source}", "--reference", f"{test}.{self.target}", "--lowercase", "--json"]
        out = self._child(["translate", *files, "-m", f"runs/{name}", *self.search], f"{name}.{test}.jsonl")
        if out.returncode:
            return {"fault": out.stdout[-200:]}
        score: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
        return score

    def _child(self, words: list[str], log: str) -> "subprocess.CompletedProcess[str]":
        child = subprocess.run(
            [*HEDDLE, *words],
            cwd=self.folder,
            env=dict(os.environ),
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        (self.folder / log).write_text(child.stdout)
        return child


def unpack(data: Path, folder: Path, ends: tuple[str, str]) -> None:
    """Write the files of two languages as plain text."""
    for name in ("train", "val", *TESTS):
        for end in ends:
            plain, packed = data / f"{name}.{end}", data / f"{name}.{end}.gz"
            if packed.exists():
                (folder / plain.name).write_bytes(gzip.decompress(packed.read_bytes()))
            elif plain.exists():
                (folder / plain.name).write_bytes(plain.read_bytes())


def main() -> None:
    """Train all, score all, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="key=value for every run, such as training.steps=100")
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--languages", nargs=2, default=("en", "de"), metavar=("SOURCE", "TARGET"))
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--beams", default="5")
    parser.add_argument("--length-penalty", default="1.0")
    given = parser.parse_intermixed_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not given.data.is_dir():
        raise SystemExit(f"{given.data}: no such folder")
    unpack(given.data, folder, tuple(given.languages))
    search = ("--beams", given.beams, "--length-penalty", given.length_penalty, "--batch", "128")
    source, target = given.languages
    bench = Bench(folder, source, target, tuple(given.words), search)
    jobs = [(recipe, seed) for recipe in given.recipes for seed in given.seeds]
    with ThreadPoolExecutor(given.at_once) as pool, (folder / "results.jsonl").open("a") as results:
        found = []
        for row in pool.map(lambda job: bench.run(*job), jobs):
            found.append(row)
            results.write(json.dumps(row) + "\n")
            results.flush()
            print(json.dumps(row), flush=True)
    table(found)
    stop_if_failed([f"{row['recipe']}-s{row['seed']}" for row in found if row["code"]], given.folder)


def table(found: list[dict[str, Any]]) -> None:
    """Print the mean and spread of every score over seeds, and how they were counted."""
    scored = [(row["recipe"], test, row[test]) for row in found for test in TESTS if "bleu" in row.get(test, {})]
    for recipe, test in dict.fromkeys((recipe, test) for recipe, test, _ in scored):
        scores = [score["bleu"] for r, t, score in scored if (r, t) == (recipe, test)]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        mean = statistics.mean(scores)
        print(f"{recipe:20} {test:18} BLEU {mean:.2f} ± {spread:.2f} over {len(scores)} seeds")
    print("\n".join(sorted({score["signature"] for *_, score in scored})))


if __name__ == "__main__":
    run_main(main)
