"""Train many runs, several at once on one device, and gather their best and last held-out losses.

    python benchmarks/sweep.py PLAN.yaml RESULTS_FOLDER [--at-once N]

PLAN.yaml holds `runs: {name: {recipe: characters, overrides: [key=value, ...], seeds: [0, 1, 2]}}`;
{root} in an override stands for the repository.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from entry_point import run_main

from heddle.core.system import read_config

ROOT = Path(__file__).absolute().parents[1]


def train(name: str, seed: int, run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one child process and read what it wrote."""
    label = f"{name}-s{seed}"
    overrides = [word.replace("{root}", str(ROOT)) for word in run.get("overrides", [])]
    words = [run["recipe"], *overrides, f"name={label}", f"seed={seed}"]
    start = time.perf_counter()
    command = [sys.executable, "-m", "heddle", "train", *words]
    with (folder / f"{label}.log").open("w") as log:
        child = subprocess.run(command, stdout=log, stderr=log, check=False, cwd=folder, env=dict(os.environ))
    seconds = time.perf_counter() - start
    lines = (folder / "runs" / label / "metrics.jsonl").read_text().splitlines() if child.returncode == 0 else []
    losses = [(row["validation_loss"], row["step"]) for row in map(json.loads, lines) if "validation_loss" in row]
    if not losses:
        return {"name": name, "seed": seed, "code": child.returncode, "seconds": round(seconds, 1)}
    best, at = min(losses)
    return {"name": name, "seed": seed, "best": best, "at": at, "last": losses[-1][0], "seconds": round(seconds, 1)}


def stop_if_failed(names: list[str], folder: Path) -> None:
    """Stop with an exit code where some runs failed."""
    if names:
        raise SystemExit(f"{len(names)} failed, see the logs in {folder}: {', '.join(names)}")


def main() -> None:
    """Train all, print a table, and write results.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--at-once", type=int, default=3)
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    runs = read_config(given.plan)["runs"]
    jobs = [(name, seed, run, folder) for name, run in runs.items() for seed in run.get("seeds", [0])]
    with ThreadPoolExecutor(given.at_once) as pool:
        found = list(pool.map(lambda job: train(*job), jobs))
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    for row in found:
        print(json.dumps(row))
    for name in runs:
        best = [row["best"] for row in found if row["name"] == name and "best" in row]
        if best:
            spread = statistics.stdev(best) if len(best) > 1 else 0.0
            print(f"{name}: best held-out loss {statistics.mean(best):.4f} ± {spread:.4f} over {len(best)} seeds")
    stop_if_failed([f"{row['name']}-s{row['seed']}" for row in found if row.get("code")], given.folder)


if __name__ == "__main__":
    run_main(main)
