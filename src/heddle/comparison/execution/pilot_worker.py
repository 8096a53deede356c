"""The pilot: seconds of a step of every variant; several compile side by side, and one at a time is measured.

The worker builds and compiles a run without its data, says so by a file, waits for a line, and times some steps.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from heddle.comparison.execution.executor import Limit
from heddle.comparison.execution.local import ended, start_process
from heddle.comparison.execution.worker import LOG, Job, peak_gib
from heddle.core import decode, first_line, user_code
from heddle.core.system import write_json, write_text
from heddle.training import RunConfig, build_dry_run

READY, SPEED = "ready", "speed.json"
WARM, TIMED = 4, 24  # steps
PAUSE = 0.1
LONGEST = 240.0  # seconds of compiling before a wave goes on without a variant


@dataclass(frozen=True)
class StepSpeed:
    """What the pilot measured of a variant."""

    seconds: float  # of a step, the median
    first_seconds: float  # to the end of the first step: compiling lies within
    peak_gib: float
    reason: str = ""  # why there is no speed

    @classmethod
    def failed(cls, reason: str) -> "StepSpeed":
        """Return what is known of a variant that could not be timed."""
        return cls(0.0, 0.0, 0.0, reason)


def main() -> None:
    """Measure the run of one job: build, compile, wait to be called, time, write."""
    job = Job.read(Path(sys.stdin.readline().strip()))
    began = time.perf_counter()
    try:
        user_code.use_all(job.use)
        run = build_dry_run(decode(RunConfig, job.config))
        run.take()
        run.wait()
        first = time.perf_counter() - began
        write_text(job.folder / READY, "")
        if not sys.stdin.readline():
            return
        batches = [run.draw(number) for number in range(1, 5)]
        laps = []
        for number in range(WARM + TIMED):
            start = time.perf_counter()
            run.take(batches[number % len(batches)])
            run.wait()
            laps.append(time.perf_counter() - start)
        found = StepSpeed(statistics.median(laps[WARM:]), first, peak_gib())
    except Exception as error:  # a variant that cannot be trained is a row of the table, not the end of it
        found = StepSpeed.failed(f"{type(error).__name__}: {first_line(error)}")
    write_json(job.folder / SPEED, asdict(found))


def measure_in_waves(
    jobs: Mapping[str, Job], processes: int, limit: Limit, on_speed: Callable[[str, StepSpeed], None]
) -> None:
    """Measure jobs by name, so many at a time: they compile side by side, then each is timed alone."""
    names = list(jobs)
    for first in range(0, len(names), processes):
        wave = names[first : first + processes]
        if limit.is_over():
            return
        with ended([]) as workers:
            for name in wave:
                for old in (READY, SPEED):
                    (jobs[name].folder / old).unlink(missing_ok=True)
                path = jobs[name].write()
                process = start_process(jobs[name].folder / LOG, processes, __name__)
                workers.append(process)
                send_line(process, str(path))
            _wait_until_compiled([jobs[name] for name in wave], workers, limit)
            for name, process in zip(wave, workers, strict=True):
                if limit.is_over():
                    return
                send_line(process, "go")
                on_speed(name, _speed(jobs[name], process))


def send_line(process: "subprocess.Popen[bytes]", line: str) -> None:
    """Write a line to a worker; one that has died is noticed elsewhere."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()


def _wait_until_compiled(jobs: Sequence[Job], workers: "Sequence[subprocess.Popen[bytes]]", limit: Limit) -> None:
    until = time.monotonic() + LONGEST
    pending = list(zip(jobs, workers, strict=True))
    while pending and time.monotonic() < until and not limit.is_over():
        pending = [(j, w) for j, w in pending if w.poll() is None and not (j.folder / READY).exists()]
        time.sleep(PAUSE)


def _speed(job: Job, process: "subprocess.Popen[bytes]") -> StepSpeed:
    """Wait for a worker; return what it measured. One that still compiles is given up."""
    try:
        process.wait(timeout=60 if (job.folder / READY).exists() else 0.1)
        return StepSpeed(**json.loads((job.folder / SPEED).read_text(encoding="utf-8")))
    except subprocess.TimeoutExpired:
        process.kill()
        return StepSpeed.failed("compiling took too long" if torch.cuda.is_available() else "took too long")
    except (OSError, ValueError, TypeError):
        return StepSpeed.failed(f"its process ended with code {process.returncode}")
