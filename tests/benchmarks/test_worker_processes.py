"""Measurements in turns: whoever fails, dies or hangs costs only itself, and no two measure together."""

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def worker_processes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the benchmark's tool; what it sets in the environment is undone."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    monkeypatch.setattr(os, "environ", os.environ.copy())
    import worker_processes

    return worker_processes


class OutOfMemoryError(RuntimeError):
    """What a device without room raises; here, when others are at work."""


def prepare(job: str, folder: Path) -> Any:
    """Prepare a job of some character."""
    if job == "crowded" and not (folder / "tried").exists():
        (folder / "tried").touch()
        raise OutOfMemoryError("no room")
    if job == "dies":
        os._exit(7)
    if job == "dies later":
        threading.Timer(0.1, os._exit, (9,)).start()
    if job == "unready":
        time.sleep(60)
    return partial(measure, job)


def measure(job: str) -> dict[str, Any]:
    """Measure: tell when it was done."""
    if job == "hangs":
        time.sleep(60)
    if job == "fails":
        raise ValueError("cannot be measured\nand more")
    start = time.time()
    time.sleep(0.2)
    return {"from": start, "to": time.time()}


def errors_of(found: list[dict[str, Any]]) -> dict[str, str | None]:
    assert len({one["job"] for one in found}) == len(found)
    return {one["job"]: one.get("error") for one in found}


def test_whoever_fails_costs_only_itself(worker_processes: ModuleType, tmp_path: Path) -> None:
    jobs = ["good", "fails", "crowded", "dies", "dies later", "better"]
    found = list(worker_processes.measured(jobs, partial(prepare, folder=tmp_path), workers=6))
    assert errors_of(found) == {
        "good": None,
        "better": None,
        "crowded": None,  # alone, there was room
        "fails": "ValueError: cannot be measured",
        "dies": "the process ended with 7",
        "dies later": "the process ended with 9",
    }
    good, better = (next(one for one in found if one["job"] == job) for job in ("good", "better"))
    assert good["to"] <= better["from"]


@pytest.mark.full
def test_whoever_hangs_is_not_waited_for(
    worker_processes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "LONGEST", 4.0)
    jobs = ["unready", "hangs", "good"]
    found = list(worker_processes.measured(jobs, partial(prepare, folder=tmp_path), workers=3, patience=8.0))
    assert errors_of(found) == {"unready": "no answer in time", "hangs": "no answer in time", "good": None}


def test_waves_take_every_job_once(worker_processes: ModuleType, tmp_path: Path) -> None:
    found = list(worker_processes.measured(["a", "b", "c"], partial(prepare, folder=tmp_path), workers=2))
    assert sorted(one["job"] for one in found) == ["a", "b", "c"]
    assert all("error" not in one for one in found)
