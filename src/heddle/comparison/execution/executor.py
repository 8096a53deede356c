"""Executors: the interface of what trains the runs of a comparison, and how long it may take."""

import math
import shutil
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.comparison.execution.ledger import Result
from heddle.comparison.execution.worker import LOG, Job

SPARE = 1.15  # by how much longer than expected a run may take
TRIES = 2  # a run whose process dies is repeated once

Group = Sequence[Job]  # the runs of one variant: one process trains them, one after the other
OnResult = Callable[[Result], None]
OnProgress = Callable[[Sequence[Job], int], None]  # runs in training, how many are queued


@dataclass
class Limit:
    """How long a comparison may take, and how long runs take, as far as is known.

    whole: start only what is expected to end in time; else runs are saved when time is up.
    """

    seconds: float | None = None
    whole: bool = False
    paces: list[float] = field(default_factory=list)  # seconds per FLOP of finished runs
    started: float = field(default_factory=time.monotonic)
    late: set[str] = field(default_factory=set)  # keys of runs that would not have ended in time

    @property
    def until(self) -> float | None:
        """Return the time by which runs have to end, in seconds since 1970; None: they may be saved."""
        if self.seconds is None or not self.whole:
            return None
        return time.time() + self.seconds - (time.monotonic() - self.started)

    @property
    def left(self) -> float:
        """Return how many seconds are left."""
        return math.inf if self.seconds is None else self.seconds - (time.monotonic() - self.started)

    def is_over(self) -> bool:
        """Tell whether time is up."""
        return self.left <= 0

    def allows(self, job: Job) -> bool:
        """Tell whether a run may start; one that does leaves by itself when it sees that it would end too late."""
        if job.names["key"] in self.late:
            return False
        if self.seconds is None or not self.whole or not self.paces:
            return not self.is_over()
        expected = SPARE * statistics.median(self.paces) * job.cost
        return time.monotonic() - self.started + expected <= self.seconds

    def learn(self, job: Job, result: Result) -> None:
        """Note how long a run took."""
        if result.status == "done" and job.cost and result.wall_s:
            self.paces.append(result.wall_s / job.cost)


class Executor(ABC):
    """Trains jobs and hands over each result as it comes."""

    @abstractmethod
    def run(self, groups: Sequence[Group], limit: Limit, on_result: OnResult, on_progress: OnProgress) -> None:
        """Train all jobs that the limit allows; one whose process dies twice is a failed result."""


def last_line(job: Job, code: int) -> str:
    """Return the last line that a process wrote about a job."""
    path = job.folder / LOG
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return f"its process ended with code {code}{f': {lines[-1][:200]}' if lines else ''}"


def remove_checkpoints(job: Job) -> None:
    """Remove the checkpoints of a finished run; its config, metrics and log stay."""
    shutil.rmtree(job.run / "checkpoints", ignore_errors=True)


def lost(job: Job, reason: str) -> Result:
    """Return the result of a run whose process died: failed, and counted."""
    names: dict[str, Any] = job.names
    return Result(
        **names, params=0, active_params=0, flops_token=0, steps=0, tokens=0, guard_skips=0, learning_rate=None,
        optimizer="", gpu_s=None, tokens_s=None, peak_gib=0.0, loss_valid=None, loss_test=None, status="failed",
        reason=reason, device="", torch="", processes=job.processes,
    )  # fmt: skip


def _local(processes: int) -> Executor:
    from heddle.comparison.execution.local import LocalExecutor

    return LocalExecutor(processes)


def _ray(processes: int) -> Executor:
    from heddle.comparison.execution.ray import RayExecutor

    return RayExecutor(processes)


EXECUTORS: dict[str, Callable[[int], Executor]] = {"local": _local, "ray": _ray}
