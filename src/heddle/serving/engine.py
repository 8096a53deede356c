"""Engine: continuous batching of requests on one model, in a thread of its own (Orca, Yu et al. 2022).

A turn of the engine reads a chunk of a prompt that joins, takes a step of all active slots, and a step of one search.
Nothing here knows of HTTP or of text: requests and answers are ids.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from heddle.core import HeddleError, UsageError
from heddle.core.system import BatchInvariance, batch_invariant, shared_thread
from heddle.decoding.runtime import device_of, eval_mode, longest_row
from heddle.models.networks import AutoregressiveModel
from heddle.nn.base import fuse_linears
from heddle.nn.quantization import prepack_linears, remove_prepacked
from heddle.serving.engine_config import EngineConfig
from heddle.serving.fair_queue import FairQueue, QueueFull
from heddle.serving.handle import Cancelled, DeadlineExceeded, EngineFault, EngineRequest, Handle, Listener
from heddle.serving.invariance import MIN_ROWS, make_invariant
from heddle.serving.job import Counters, Job, SlotLimits, make_job
from heddle.serving.scheduler import Scheduler
from heddle.serving.slot_batch import BatchSize, SlotBatch, batch_capacity

T = TypeVar("T")

IDLE = 0.25  # seconds between two heartbeats while there is nothing to do
log = logging.getLogger("heddle")


class Engine:
    """Generates for many requests at once: `engine.submit(EngineRequest(Request([1, 2]), config)).result()`.

    Call `close`, or use it in a `with` statement. Its answers are those of offline generation with the same settings.
    """

    def __init__(self, model: AutoregressiveModel, config: EngineConfig | None = None) -> None:
        self.model, self.config = model, EngineConfig() if config is None else config
        if model.reads != "ids":
            raise UsageError(f"serve: want a model that reads text, got one that reads {model.reads}")
        self.device = device_of(model)
        self.capacity = batch_capacity(model, self.config.capacity)
        self.source = model.context if model.reads_source else 0  # tokens of a source, at most
        self.invariance: BatchInvariance | None = None
        self.counters = Counters()
        self.slots = 0
        self._queue: FairQueue[Job] = FairQueue(self.config.waiting, self.config.client_limit)
        self._tasks: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._wake = threading.Condition()
        self._closing, self._abort = False, False
        self._prepacked = False  # by this engine, which then removes the copies
        self._failure: HeddleError | None = None
        self._ready = threading.Event()
        self._heartbeat = time.monotonic()
        self._scheduler: Scheduler | None = None
        self._thread = threading.Thread(target=self._main, name="heddle-engine", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)  # a thread that computes while Python ends would abort the process
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "Engine":
        """Return the engine."""
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel what is running, and end the thread."""
        self.close(drain=0)

    # --- for clients, from any thread ---------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, listener: Listener | None = None) -> Handle:
        """Queue a request; refuse at once what cannot be served, or what is too much.

        The listener, if there is one, gets each event in the engine's thread; else the handle keeps them.
        """
        job = make_job(self.model, request, self.config.cache, SlotLimits(self.capacity, self.source))
        job.handle = handle = Handle(request, listener, self._cancel)
        handle.rows = request.config.samples if job.row is None else 1
        with self._wake:
            self._check_open()
            self._queue.put(job, request.client)
            self._wake.notify()
        return handle

    def check(self, client: str, count: int) -> None:
        """Refuse several requests of a client at once if they would not all find room in the queue."""
        with self._wake:
            self._check_open()
            self._queue.check(client, count)

    def run(self, function: Callable[[], T]) -> "Future[T]":
        """Call a function in the engine's thread, between two steps: embeddings, say, or scores.

        Requests go on whenever it pauses, as long texts do.
        """
        future: Future[T] = Future()
        with self._wake:
            self._check_open()
            if len(self._tasks) >= self.config.waiting:
                raise QueueFull(f"queue: want at most {self.config.waiting} calls waiting, got {len(self._tasks) + 1}")
            self._tasks.append((function, future))
            self._wake.notify()
        return future

    def is_alive(self, within: float = 30.0) -> bool:
        """Tell whether the engine has taken a turn in the last seconds."""
        return self._thread.is_alive() and self._failure is None and time.monotonic() - self._heartbeat < within

    def load(self) -> dict[str, int]:
        """Return how many requests are waiting, being read, active and searching, and how much is cached."""
        with self._wake:
            waiting = len(self._queue)
        return {"waiting": waiting} | ({} if self._scheduler is None else self._scheduler.load())

    def close(self, drain: float | None = None) -> None:
        """Refuse new requests, let accepted ones finish for some seconds (None: all of them), and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if drain != 0:
            self._thread.join(drain)
        with self._wake:
            self._abort = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self.close(drain=0)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise Cancelled("engine: closed, so it takes no more requests")

    def _cancel(self, handle: Handle) -> None:
        with self._wake:
            self._wake.notify()

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            with torch.inference_mode(), eval_mode(self.model):
                scheduler = self._scheduler = Scheduler(self._build(), self.config, self.counters)
                self._ready.set()
                with batch_invariant(self.invariance):
                    self._loop(scheduler)
        except BaseException as error:
            self._failure = error if isinstance(error, HeddleError) else _internal(error)
            if self._ready.is_set():
                log.error("the engine stopped", exc_info=error)
        finally:
            if self._prepacked:
                remove_prepacked(self.model)
            self._fail_all(self._failure or Cancelled("engine: closed"))
            self._ready.set()

    def _build(self) -> SlotBatch:
        """Allocate the slots that the memory allows, and make them batch-invariant."""
        model, config, kind = self.model, self.config, self.device.type
        if kind == "cpu" and config.prepack:
            self._prepacked = prepack_linears(model) > 0
        invariant = config.is_invariant(kind)
        slots = max(config.slots, MIN_ROWS) if invariant else config.slots
        allocated = self.capacity if longest_row(model) is not None else min(self.capacity, model.context)
        size = BatchSize(slots, allocated, self.source, config.chunk_on(kind))
        if config.memory is not None:
            row = SlotBatch(model, replace(size, slots=1), config.cache, 0).row_bytes()
            least = MIN_ROWS if invariant else 1
            if row * least > config.memory:
                raise UsageError(f"memory: want at least {row * least:,} bytes, {least} slots, got {config.memory:,}")
            size = replace(size, slots=min(slots, config.memory // row))
        batch = SlotBatch(model, size, config.cache, config.prefix_bytes)
        self.slots = size.slots
        if kind == "cuda":
            with torch.inference_mode(False):  # fused weights must still serve in training
                fuse_linears(model)
        batch.captures = config.captures_on(kind) and model.can_capture()
        if invariant:
            self.invariance = make_invariant(batch)
        if batch.captures:
            with batch_invariant(self.invariance):
                batch.warm_up()
        return batch

    def _loop(self, scheduler: Scheduler) -> None:
        while True:
            self._heartbeat = time.monotonic()
            if not self._admit(scheduler):
                break
            with self._wake:
                tasks = len(self._tasks)  # each waits there until it is called, so that it is told if the engine dies
            worked = scheduler.turn()
            with shared_thread(partial(self._between_pieces, scheduler)):
                for _ in range(tasks):
                    with self._wake:
                        function, future = self._tasks.pop(0)
                    _run_task(function, future)
                    scheduler.turn()
            if not worked and not tasks and not self._wait():
                break
        scheduler.fail_all(Cancelled("engine: closed before the request was finished"))

    def _admit(self, scheduler: Scheduler) -> bool:
        """Begin with the requests that can; tell whether to go on."""
        with self._wake:
            self._drop_waiting()
            while (job := self._queue.pop(scheduler.can_admit)) is not None:
                scheduler.admit(job)
            return not self._abort

    def _between_pieces(self, scheduler: Scheduler) -> None:
        """Take a turn in the middle of a long call."""
        self._heartbeat = time.monotonic()
        if not self._admit(scheduler):
            raise Cancelled("engine: closed")
        scheduler.turn()

    def _wait(self) -> bool:
        """Wait for work; tell whether there may be more."""
        with self._wake:
            if len(self._queue) or self._tasks:
                return True
            if self._closing:
                return False
            self._wake.wait(IDLE)
        return True

    def _drop_waiting(self) -> None:
        """Drop waiting requests that were cancelled or have waited too long."""
        now = time.monotonic()
        for job in list(self._queue):
            wait = self.config.max_wait if job.request.max_wait is None else job.request.max_wait
            if job.handle.cancelled.is_set():
                self._queue.remove(job)
                job.fail(Cancelled("request: cancelled"))
            elif wait is not None and now - job.handle.timing.submitted > wait:
                self._queue.remove(job)
                job.fail(DeadlineExceeded(f"request: waited longer than {wait:g} s"))

    def _fail_all(self, error: HeddleError) -> None:
        if self._scheduler is not None:
            self._scheduler.fail_all(error)
        with self._wake:
            self._closing = True
            while (job := self._queue.pop()) is not None:
                job.fail(error)
            for _, future in self._tasks:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            self._tasks.clear()


def _run_task(function: Callable[[], Any], future: "Future[Any]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise


def _internal(error: BaseException) -> HeddleError:
    fault = EngineFault(f"engine: stopped by {type(error).__name__}")
    fault.__cause__ = error
    return fault
