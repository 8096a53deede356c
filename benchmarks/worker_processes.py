"""Turns: prepare many measurements side by side, for compiling is work of the CPU, then take them one at a time.

Each has a process of its own: a compiler remembers the shapes that it met before, and whoever fails, hangs or is killed
must not cost the others.
"""

import contextlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

Measure = Callable[[], dict[str, Any]]
Found = dict[str, Any]

READY: Found = {}
PATIENCE = 300.0  # seconds in which all that are prepared side by side must be ready
LONGEST = 90.0  # seconds that one measurement may take
MEMORY = "OutOfMemoryError"


def measured(
    jobs: Sequence[Any], prepare: Callable[[Any], Measure], workers: int, threads: int = 1, patience: float = PATIENCE
) -> Iterator[Found]:
    """Yield what each job measures; none does before its whole wave, of so many workers, is ready, or beside another.

    `prepare` must be a function of a module; it compiles and warms up. A job that found no memory among the others is
    tried again alone.
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    waves, crowded = -(-len(jobs) // workers), []
    for number in range(waves):
        for found in _wave(jobs[number::waves], prepare, patience):
            if found.get("error", "").startswith(MEMORY) and workers > 1:
                crowded.append(found["job"])
            else:
                yield found
    for job in crowded:
        yield from _wave([job], prepare, patience)


@dataclass
class _Worker:
    """A job in a process of its own, and the line on which it answers."""

    job: Any
    process: Any
    line: Connection

    @classmethod
    def start(cls, job: Any, prepare: Callable[[Any], Measure]) -> "_Worker":
        context = multiprocessing.get_context("spawn")
        line, theirs = context.Pipe()
        process = context.Process(target=_work, args=(job, prepare, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the line ends with the process
        return cls(job, process, line)

    def answer(self, seconds: float) -> Found:
        """Wait for what it has to say."""
        try:
            if self.line.poll(max(0.0, seconds)):
                return self.line.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            self.process.join(5)
            return {"error": f"the process ended with {self.process.exitcode}"}
        return {"error": "no answer in time"}

    def measure(self) -> Found:
        """Let it measure; others wait."""
        with contextlib.suppress(OSError):  # it may have ended since; `answer` will tell
            self.line.send(None)
        return self.answer(LONGEST)

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.join()


def _wave(jobs: Sequence[Any], prepare: Callable[[Any], Measure], patience: float) -> Iterator[Found]:
    """Prepare some jobs side by side, then let one after the other measure."""
    workers = [_Worker.start(job, prepare) for job in jobs]
    try:
        end = time.monotonic() + patience
        prepared = [worker.answer(end - time.monotonic()) for worker in workers]
        for worker, found in zip(workers, prepared, strict=True):
            if found != READY:
                worker.stop()  # what it holds is for the others
        for worker, found in zip(workers, prepared, strict=True):
            yield {"job": worker.job} | (worker.measure() if found == READY else found)
            worker.stop()
    finally:
        for worker in workers:
            worker.stop()


def _work(job: Any, prepare: Callable[[Any], Measure], line: Connection) -> None:
    measure = _attempt(prepare, job)
    if isinstance(measure, dict):
        line.send(measure)
        return
    line.send(READY)
    line.recv()
    line.send(_attempt(measure))


def _attempt(act: Callable[..., Any], *given: Any) -> Any:
    """Act; a failure is a result too."""
    try:
        return act(*given)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"}
