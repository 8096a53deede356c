"""The pilot: seconds of a step of every variant; several compile side by side, and one at a time is measured.

The worker builds and compiles a run without its data, says so by a file, waits for a line, and times some steps.
"""

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from heddle.comparison.execution.executor import Limit
from heddle.comparison.execution.local import ended, start_process
from heddle.comparison.execution.worker import LOG, Job, peak_gib
from heddle.core import decode, first_line, user_code
from heddle.core.system import write_json, write_text
from heddle.training import RunConfig, build_dry_run

READY, SPEED = "ready", "speed.json"
WARM, TIMED = 4, 24  # steps
PAUSE = 0.1
SLOW = "stopped: it compiled for longer than its share of the time; --pilot tries it again"
Process = subprocess.Popen[bytes]
LONGEST = 240.0  # seconds of compiling before a wave goes on without a variant
SHARE = 0.7  # of the time that is left for each wave, in which it may compile; the rest is for timing
PATIENCE, SHORTEST = 2.0, 20.0  # once half of a wave are compiled, others have so many times as long; and seconds


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
    """Measure jobs by name, so many at a time: they compile side by side, then each is timed alone.

    A wave does not wait for its slowest: what compiles for far longer than the others, or than its share of the time,
    is stopped and recorded as such; another pilot tries it again, with what the compiler's cache has kept.
    """
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
            share = min(LONGEST, SHARE * limit.left / -(-(len(names) - first) // processes))
            slow = _wait_until_compiled([(jobs[name], one) for name, one in zip(wave, workers, strict=True)], share)
            for process in slow:
                process.kill()  # what still compiles would disturb the timing
            for name, process in zip(wave, workers, strict=True):
                if limit.is_over():
                    return
                send_line(process, "go")
                on_speed(name, _speed(jobs[name], process))


def send_line(process: Process, line: str) -> None:
    """Write a line to a worker; one that has died is noticed elsewhere."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()


def _wait_until_compiled(wave: Sequence[tuple[Job, Process]], share: float) -> list[Process]:
    """Wait for a wave; return the processes that are not ready in time."""
    began, pending, until = time.monotonic(), list(wave), share
    while pending and time.monotonic() - began < until:
        pending = [(job, one) for job, one in pending if one.poll() is None and not (job.folder / READY).exists()]
        taken = time.monotonic() - began
        if until == share and 2 * len(pending) <= len(wave):
            until = min(share, max(SHORTEST, PATIENCE * taken))
        time.sleep(PAUSE)
    return [one for _, one in pending]


def _speed(job: Job, process: Process) -> StepSpeed:
    """Wait for a worker; return what it measured. One that was stopped while it compiled has no speed."""
    is_ready = (job.folder / READY).exists()
    try:
        process.wait(timeout=60)
        return StepSpeed(**json.loads((job.folder / SPEED).read_text(encoding="utf-8")))
    except subprocess.TimeoutExpired:
        process.kill()
        return StepSpeed.failed("its steps took too long")
    except (OSError, ValueError, TypeError):
        stopped = not is_ready and process.returncode == -signal.SIGKILL
        return StepSpeed.failed(SLOW if stopped else f"its process ended with code {process.returncode}")
