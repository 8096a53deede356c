"""Executors: where the runs of a comparison are trained: processes of this machine, or a Ray cluster."""

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heddle.comparison.ledger import Result
from heddle.comparison.worker import Job
from heddle.core import MissingExtra, first_line

PAUSE = 0.2  # seconds between two looks at the processes
TRIES = 2  # a run whose process dies is repeated once
OnResult = Callable[[Result], None]
OnProgress = Callable[[int, int], None]  # runs in training, runs waiting


class Executor(ABC):
    """Trains jobs and hands over each result as it comes."""

    @abstractmethod
    def run(self, jobs: Sequence[Job], on_result: OnResult, on_progress: OnProgress) -> None:
        """Train all jobs; one whose process dies twice is a failed result."""


@dataclass
class LocalExecutor(Executor):
    """Processes of this machine, so many at a time, each with its share of the cores."""

    processes: int = 1

    def run(self, jobs: Sequence[Job], on_result: OnResult, on_progress: OnProgress) -> None:
        waiting = deque((job, 1) for job in jobs)
        running: list[_Child] = []
        with _ended_with(running):
            while waiting or running:
                while waiting and len(running) < self.processes:
                    running.append(self._start(*waiting.popleft()))
                on_progress(len(running), len(waiting))
                for child in [child for child in running if child.process.poll() is not None]:
                    running.remove(child)
                    result = child.result()
                    if result is not None:
                        on_result(result)
                    elif child.tries < TRIES:
                        waiting.append((child.job, child.tries + 1))
                    else:
                        on_result(lost(child.job, child.reason()))
                time.sleep(PAUSE)

    def _start(self, job: Job, tries: int) -> "_Child":
        threads = max(1, (os.cpu_count() or 1) // self.processes)
        return _Child(job, tries, *start_worker(job, threads))


@dataclass
class _Child:
    job: Job
    tries: int
    process: "subprocess.Popen[bytes]"
    log: Path
    started: float = field(default_factory=time.perf_counter)

    def result(self) -> Result | None:
        return read_result(self.job) if self.process.returncode == 0 else None

    def reason(self) -> str:
        """Return the last line that the process wrote."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {self.process.returncode}"


def start_worker(job: Job, threads: int) -> tuple["subprocess.Popen[bytes]", Path]:
    """Start a process that trains one job; return it and the file of what it writes."""
    job.folder.mkdir(parents=True, exist_ok=True)
    spec, log = job.folder / "job.json", job.folder / "log.txt"
    job.write(spec)
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "heddle.comparison.worker", str(spec)]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env), log


def read_result(job: Job) -> Result | None:
    """Return the result that a worker has written for a job, if it has."""
    path = job.folder / "result.json"
    try:
        result = Result.parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return result if result.key == job.names["key"] else None


@contextmanager
def _ended_with(running: "list[_Child]") -> Iterator[None]:
    """End the processes when the comparison is left in any way; they resume from their checkpoints."""
    try:
        yield
    finally:
        for child in running:
            child.process.terminate()
        for child in running:
            try:
                child.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.process.kill()


def lost(job: Job, reason: str) -> Result:
    """Return the result of a run whose process died: failed, and counted."""
    numbers = dict.fromkeys(
        ("parameters", "active_parameters", "flops_per_token", "steps", "tokens", "skipped_steps"), 0
    )
    return Result(
        **job.names, **numbers, status="failed", reason=reason, loss=float("inf"), bits_per_byte=None,
        learning_rate=None, optimizer="", seconds=0.0, tokens_per_second=0.0, peak_gib=0.0, commit="", device="",
        torch="",
    )  # fmt: skip


class RayExecutor(Executor):
    """Workers of a Ray cluster; each trains one run at a time, and a run whose worker dies is repeated once."""

    def run(self, jobs: Sequence[Job], on_result: OnResult, on_progress: OnProgress) -> None:
        ray = _ray()
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        remote = ray.remote(max_retries=TRIES - 1, num_cpus=1)(_train_remotely)
        by_task = {remote.remote(job): job for job in jobs}
        while by_task:
            on_progress(len(by_task), 0)
            done, _ = ray.wait(list(by_task), timeout=1.0)
            for task in done:
                job = by_task.pop(task)
                try:
                    on_result(Result.parse(json.loads(ray.get(task))))
                except ray.exceptions.RayError as error:
                    on_result(lost(job, first_line(error)))


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingExtra("ray", "cluster", "executor=ray") from None
    return ray


def _train_remotely(job: Job) -> str:
    """Train a job on a worker, in a process of its own; return its result as a line."""
    process, log = start_worker(job, threads=1)
    process.wait()
    result = read_result(job) if process.returncode == 0 else None
    if result is None:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        result = lost(job, lines[-1][:200] if lines else f"exit code {process.returncode}")
    return result.line()


EXECUTORS: dict[str, Callable[[int], Executor]] = {"local": LocalExecutor, "ray": lambda _: RayExecutor()}
