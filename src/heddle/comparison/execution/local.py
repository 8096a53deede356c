"""The local executor: processes of this machine, so many at a time, each for the runs of one variant."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from heddle.comparison.execution.executor import (
    TRIES,
    Executor,
    Group,
    Limit,
    OnProgress,
    OnResult,
    last_line,
    lost,
    remove_checkpoints,
)
from heddle.comparison.execution.ledger import Result
from heddle.comparison.execution.training_slots import TOO_LATE
from heddle.comparison.execution.worker import LOG, RESULT, Job
from heddle.core.system import usable_cores

PAUSE = 0.1  # seconds between two looks at the processes
GRACE = 60.0  # seconds that processes have to save when they are to stop


@dataclass
class LocalExecutor(Executor):
    """Processes of this machine, so many at a time; each trains the runs of one variant."""

    processes: int = 1

    def run(self, groups: Sequence[Group], limit: Limit, on_result: OnResult, on_progress: OnProgress) -> None:
        queue = _Queue(deque(deque(group) for group in groups), limit, on_result)
        with ended(queue.processes):
            while not limit.is_over():
                queue.collect()
                queue.start(self.processes)
                if not queue.workers:
                    return
                on_progress([worker.job for worker in queue.workers if worker.job is not None], queue.queued)
                time.sleep(PAUSE)
        for worker in queue.workers:  # what ended while the others were saved
            queue.take_result(worker)


@dataclass
class _Queue:
    """Groups that wait, the workers, and how often each run has been tried."""

    groups: deque[deque[Job]]
    limit: Limit
    on_result: OnResult
    workers: "list[_Worker]" = field(default_factory=list)
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)  # of all workers, also of those that leave
    tries: Counter[str] = field(default_factory=Counter)

    @property
    def queued(self) -> int:
        return sum(map(len, self.groups)) + sum(len(worker.left) for worker in self.workers)

    def start(self, most: int) -> None:
        """Start workers while there is work and room."""
        while len(self.workers) < most:
            group = next((one for one in self.groups if self.limit.allows(one[0])), None)
            if group is None:
                return
            self.groups.remove(group)
            worker = _Worker(group, start_process(group[0].folder / LOG, most))
            self.workers.append(worker)
            self.processes.append(worker.process)
            self._feed(worker)

    def _feed(self, worker: "_Worker") -> None:
        """Give a worker its next run, or let it leave."""
        if worker.left and self.limit.allows(worker.left[0]):
            worker.take(worker.left.popleft())
        else:
            if worker.left:
                self.groups.append(worker.left)
            worker.close_input()
            self.workers.remove(worker)

    def collect(self) -> None:
        """Hand over the results that are there; give the runs of dead workers to others."""
        for worker in list(self.workers):
            gone = worker.process.poll() is not None  # before the look for a result, which may come last
            result = self.take_result(worker)
            if gone or (result is not None and result.status == "failed"):  # after a failure it leaves
                self._bury(worker)
            elif worker.job is None:
                self._feed(worker)

    def take_result(self, worker: "_Worker") -> Result | None:
        """Hand over the result of a worker's run, if it is there."""
        job = worker.job
        result = None if job is None else job.result()
        if job is not None and result is not None:
            self._done(job, result)
            worker.job = None
        return result

    def _bury(self, worker: "_Worker") -> None:
        self.workers.remove(worker)
        worker.close_input()
        job = worker.job
        if job is not None and worker.process.returncode == TOO_LATE:
            self.limit.late.update(one.names["key"] for one in (job, *worker.left))  # the others are as long
            worker.left.appendleft(job)
        elif job is not None:
            self.tries[job.names["key"]] += 1
            if self.tries[job.names["key"]] < TRIES:
                worker.left.appendleft(job)
            else:
                self._done(job, lost(job, last_line(job, worker.process.returncode)))
        if worker.left:
            self.groups.appendleft(worker.left)

    def _done(self, job: Job, result: Result) -> None:
        self.limit.learn(job, result)
        self.on_result(result)
        remove_checkpoints(job)


@dataclass
class _Worker:
    """A process, the run that it trains, and those that it is to train after it."""

    left: deque[Job]
    process: "subprocess.Popen[bytes]"
    job: Job | None = None

    def take(self, job: Job) -> None:
        """Begin a run."""
        self.job = job
        path = job.write()
        (job.folder / RESULT).unlink(missing_ok=True)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: noticed at the next look
            self.process.stdin.write(f"{path}\n".encode())
            self.process.stdin.flush()

    def close_input(self) -> None:
        """Tell the process that no more comes."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


WORKER = "heddle.comparison.execution.worker"


def start_process(log: Path, processes: int, module: str = WORKER) -> "subprocess.Popen[bytes]":
    """Start a worker, with its share of the cores for compiling; what it prints before its first run goes to a file."""
    share = str(max(1, usable_cores() // processes))
    env = {"TORCHINDUCTOR_COMPILE_THREADS": share, "OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share} | os.environ
    command = [sys.executable, "-c", f"from {module} import main; main()"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=env)


@contextmanager
def ended(processes: "list[subprocess.Popen[bytes]]") -> "Iterator[list[subprocess.Popen[bytes]]]":
    """End processes when a block is left in any way; runs under way are saved first."""
    try:
        yield processes
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)  # nothing happens to one that has ended
        until = time.monotonic() + GRACE
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.1, until - time.monotonic()))
            process.kill()
            process.wait()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
