"""What docs show of measurements is what was measured."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DOCS = BENCHMARKS.parent / "docs"


def plots(*words: Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, str(BENCHMARKS / "plots.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_figure_and_the_tables_are_those_of_the_results(tmp_path: Path) -> None:
    done = plots(BENCHMARKS / "results.jsonl", tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("speed.svg", "speed_presets.md"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), f"run benchmarks/plots.py: {name} is old"


def test_the_newest_measurement_of_a_preset_is_told(tmp_path: Path) -> None:
    line = {"name": "preset first", "device": "a chip", "full": True, "batch": 2, "length": 8, "commit": "abc"}
    line |= {"mfu": 0.5, "parameters": 2_000_000, "peak_gib": 1.5, "first_seconds": 3.0}
    lines = [json.dumps(line | {"tokens_per_second": speed}) for speed in (1000, 2000)]
    (tmp_path / "results.jsonl").write_text("\n".join(lines))
    assert plots(tmp_path / "results.jsonl", tmp_path).returncode == 0
    told = (tmp_path / "speed_presets.md").read_text()
    assert "| `first` | 2 x 8 | 2,000 | 50.0% | 2.0 M | 1.5 | 3.0 | abc |" in told
    assert "1,000" not in told and "one a chip" in told


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    done = plots(tmp_path / "none.jsonl", tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "none.jsonl" in done.stderr
