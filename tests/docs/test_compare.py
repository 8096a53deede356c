"""docs/compare.md is real: its own part goes through a comparison by the command that the page has."""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.comparison.plan import check_suite
from heddle.comparison.suites import SUITES
from heddle.comparison.suites.suite import read_suite

PAGE = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
SMALL = (
    "tokenizer=byte model.layers=1 model.width=16 model.heads=2 rows.length=32 training.batch=2 validation_rows=4 "
    "budget.steps=4 seeds=1 hardware.dtype=float32"
)


def test_the_suite_on_the_page_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(source)
    (tmp_path / "my.txt").write_text("A line of text.\n" * 50)
    suite = read_suite(tmp_path / "mine.yaml")
    check_suite(suite)
    assert [variant.name for variant in suite.variants] == ["plain", "longer window", "wide"]
    assert (len(suite.seeds), suite.arms, suite.budget.tokens) == (3, ("tokens", "rate"), 1_000_000)


def test_the_page_names_every_suite_and_every_file_that_comes_out() -> None:
    for name in (*SUITES, "runs.jsonl", "results.csv", "logs.jsonl", "report.html", "figures/", "--at-once", "--whole"):
        assert f"`{name}" in PAGE, name


def test_a_part_of_ones_own_is_compared_in_one_command(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (command,) = re.findall(r"^heddle (compare .* --use .*)$", PAGE, re.MULTILINE)
    (tmp_path / "max_norm.py").write_text(source)
    words = [*shlex.split(command), *SMALL.split(), "--no-controls", "--processes", "1"]
    run = subprocess.run([sys.executable, "-m", "heddle", *words], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = list(csv.DictReader((tmp_path / "comparisons/first/results.csv").read_text().splitlines()))
    assert [(row["variant"], row["status"]) for row in rows] == [("base", "done"), ("norm:max_norm", "done")]
    assert "max_norm()" in rows[1]["diff"] and float(rows[0]["params"]) > float(rows[1]["params"])
