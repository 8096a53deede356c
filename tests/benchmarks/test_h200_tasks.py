"""The GPU script of the text tasks: what it keeps, what a fresh machine builds upon, phases that it does not know."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scripts import BENCHMARKS, script

made = script("h200_keep")


def write(path: Path, *lines: dict[str, Any]) -> None:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a folder of work: results of two rows, a student, and a domain record of one seed and a half."""
    work = tmp_path / "work"
    write(work / "results.jsonl", {"label": "scratch", "seed": 0}, {"label": "minilm", "seed": 0})
    write(work / "distillation_runs.jsonl", {"run": "student-0"})
    write(work / "domain" / "domain.jsonl", *({"seed": seed} for seed in (0, 0, 0, 0, 1)))
    for name, kind in (("encoder", "masked_token"), ("scratch-trec-0.1-0", "classes")):
        write(work / "runs" / name / "config.json", {"objective": {"kind": kind}})
        write(work / "runs" / name / "metrics.jsonl", {"step": 1})
    return work


def test_a_fresh_machine_builds_upon_what_does_not_need_lost_weights(work: Path, tmp_path: Path) -> None:
    made.keep(work, tmp_path / "kept.tgz")
    made.restore(tmp_path / "kept.tgz", tmp_path / "fresh")
    fresh = tmp_path / "fresh"
    assert [line["label"] for line in made.lines_of(fresh / "results.jsonl")] == ["minilm"]
    assert [line["label"] for line in made.lines_of(fresh / "earlier_results.jsonl")] == ["scratch"]
    assert not (fresh / "distillation_runs.jsonl").exists()
    assert [line["seed"] for line in made.lines_of(fresh / "domain" / "domain.jsonl")] == [0, 0, 0, 0]
    assert sorted(path.name for path in (fresh / "notes").iterdir()) == ["encoder"], "fine-tuned runs have their line"


def test_where_the_encoder_still_lies_everything_is_built_upon(work: Path, tmp_path: Path) -> None:
    made.keep(work, tmp_path / "kept.tgz")
    write(tmp_path / "warm" / "runs" / "encoder" / "checkpoints" / "x")
    made.restore(tmp_path / "kept.tgz", tmp_path / "warm")
    assert len(made.lines_of(tmp_path / "warm" / "results.jsonl")) == 2
    assert (tmp_path / "warm" / "distillation_runs.jsonl").exists()


def test_what_is_there_is_not_written_over(work: Path, tmp_path: Path) -> None:
    made.keep(work, tmp_path / "kept.tgz")
    write(work / "results.jsonl", {"label": "minilm", "seed": 5})
    made.restore(tmp_path / "kept.tgz", work)
    assert made.lines_of(work / "results.jsonl") == [{"label": "minilm", "seed": 5}]


def test_an_unknown_phase_is_refused_before_anything_runs(tmp_path: Path) -> None:
    own = os.environ | {"WORK": str(tmp_path / "w"), "CARRY": str(tmp_path), "OUT": str(tmp_path / "o")}
    command = ["bash", str(BENCHMARKS / "h200_tasks.sh"), "report,taks", "20"]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.strip() == "no phase is called 'taks'"
    assert not (tmp_path / "w").exists()
