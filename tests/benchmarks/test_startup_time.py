"""The benchmark of starts times each in a process of its own, and writes down nothing that is not of a GPU."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = [
    "first",
    "model.layers=1",
    "model.width=16",
    "model.heads=1",
    "rows.length=16",
    "training.batch=2",
    "hardware.device=cpu",
]


def test_a_start_tells_when_its_first_step_was_taken() -> None:
    before = (BENCHMARKS / "results.jsonl").read_text()
    command = [sys.executable, str(BENCHMARKS / "startup_time.py"), *TINY, "hardware.compile=off", "--starts", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("start 1: ") and "'compiled': False" in done.stdout and "'stepped': " in done.stdout
    assert (BENCHMARKS / "results.jsonl").read_text() == before
