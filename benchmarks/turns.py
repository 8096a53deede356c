"""Turns: prepare many measurements side by side, for compiling is work of the CPU, then take them one at a time."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Measure = Callable[[], dict[str, Any]]


def measured(
    jobs: Sequence[Any], prepare: Callable[[Any], Measure], workers: int, threads: int = 1
) -> Iterator[dict[str, Any]]:
    """Yield what each job measures; none does before all are prepared, and none while another does.

    `prepare` must be a function of a module; it compiles and warms up. Each worker holds its jobs in one process.
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    context = multiprocessing.get_context("spawn")
    workers = min(workers, len(jobs))
    found, ready, turn = context.Queue(), context.Barrier(workers), context.Lock()
    shares = [jobs[number::workers] for number in range(workers)]
    running = [context.Process(target=_work, args=(share, prepare, ready, turn, found)) for share in shares]
    for process in running:
        process.start()
    for _ in jobs:
        yield found.get(timeout=550)
    for process in running:
        process.join()


def _work(jobs: Sequence[Any], prepare: Callable[[Any], Measure], ready: Any, turn: Any, found: Any) -> None:
    prepared = [_attempt(prepare, job) for job in jobs]
    ready.wait()
    for job, measure in zip(jobs, prepared, strict=True):
        with turn:
            found.put({"job": job} | (measure if isinstance(measure, dict) else _attempt(measure)))


def _attempt(act: Callable[..., Any], *given: Any) -> Any:
    """Act; a failure is a result too, and must not keep the others waiting."""
    try:
        return act(*given)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"}
