"""Scheduler: which prompt is read and which slots step in a turn; an error ends the guilty request alone."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from heddle.core import HeddleError
from heddle.decoding.generation import MixedRow, StepOutput, TokenLogprobs, advance_rows, chosen_logprobs
from heddle.decoding.sampling import Logits
from heddle.serving.chunked_prefill import ChunkedPrefill, PromptReader
from heddle.serving.engine_config import EngineConfig
from heddle.serving.handle import Cancelled
from heddle.serving.job import Counters, Job
from heddle.serving.slot_batch import SlotBatch

T = TypeVar("T")

MAX_READS = 8  # reads in a turn
SMOOTHING = 0.3


class Scheduler:
    """The requests that have been admitted: being read, in slots, or searching by themselves."""

    def __init__(self, batch: SlotBatch, config: EngineConfig, counters: Counters) -> None:
        self.batch, self.config, self.counters = batch, config, counters
        self.prefill = ChunkedPrefill(batch)
        self.reading: list[Job] = []
        self.active: dict[int, Job] = {}  # by slot
        self.searching: list[Job] = []
        self.clock = time.thread_time if batch.device.type == "cpu" else self._device_clock
        self.step_seconds = 0.0  # of late

    def _device_clock(self) -> float:
        """Return the time at which the GPU has finished what was launched."""
        torch.cuda.synchronize(self.batch.device)
        return time.perf_counter()

    def load(self) -> dict[str, int]:
        """Return how many requests are in each place."""
        cached = 0 if self.batch.trie is None else self.batch.trie.used_bytes
        return {
            "reading": len(self.reading),
            "active": len(self.active),
            "searching": len(self.searching),
            "slots": self.batch.size.slots,
            "prefix_bytes": cached,
        }

    def can_admit(self, job: Job) -> bool:
        """Tell whether a request can be admitted: a slot is free; for a search, which has none, it may begin."""
        if job.row is None:
            return len(self.searching) < self.config.max_searches
        return len(self.reading) + len(self.active) < min(self.batch.size.slots, self.config.slots)

    def admit(self, job: Job) -> None:
        """Begin with a request."""
        if job.row is None:
            self.searching.append(job)
        else:
            job.reader = PromptReader(job.prefill, job.request.prompt_logprobs is not None, job.request.cache_salt)
            self.reading.append(job)

    def turn(self) -> bool:
        """Do a little for everyone; tell whether there was anything to do."""
        self._drop_cancelled()
        worked = bool(self.reading or self.active or self.searching)
        if self.reading:
            self._read()
        self._step()
        self._search()
        return worked

    def fail_all(self, error: HeddleError) -> None:
        """End all requests."""
        for job in [*self.reading, *self.active.values(), *self.searching]:
            job.fail(error)
        self.reading, self.active, self.searching = [], {}, []

    def _drop_cancelled(self) -> None:
        cancelled = Cancelled("request: cancelled")
        for slot, job in list(self.active.items()):
            if job.handle.cancelled.is_set():
                del self.active[slot]
                self._end(job, cancelled)
        for waiting in (self.reading, self.searching):
            for job in [job for job in waiting if job.handle.cancelled.is_set()]:
                waiting.remove(job)
                self._end(job, cancelled)

    def _end(self, job: Job, error: BaseException) -> None:
        if isinstance(error, Cancelled):
            self.counters.cancelled += 1
        else:
            self.counters.failed += 1
        job.release()
        job.fail(error)

    def _guarded(self, job: Job, work: Callable[[], T]) -> T | None:
        """Do some work for one request; an error is its own."""
        try:
            return work()
        except Exception as error:
            self._end(job, error)
            return None

    # --- prompts ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read chunks of prompts, for as long as a step takes: prompts and running requests share the time evenly.

        How many are read in a turn changes no bit.
        """
        end = self.clock() + (self.step_seconds if self.active else 0.0)
        for _ in range(MAX_READS):
            self._read_chunk()
            if not self.reading or self.clock() >= end:
                return

    def _read_chunk(self) -> None:
        """Read a chunk of each of some prompts, whose turn is then over."""
        jobs = {job.reader: job for job in self.reading if job.reader is not None}
        group = self.prefill.choose([*jobs], self._most_read())
        for reader in group:
            self.reading.remove(jobs[reader])
            self.reading.append(jobs[reader])
        try:
            logits = self.prefill.read(group)
        except Exception as error:  # nothing was advanced yet
            if len(group) == 1:
                self._end(jobs[group[0]], error)
            for reader in group if len(group) > 1 else ():
                self._guarded(jobs[reader], lambda reader=reader: self._read_alone(jobs[reader]))  # type: ignore[misc]
        else:
            self._begin([jobs[reader] for reader in group if not reader.left], logits)
        self.reading = [job for job in self.reading if job.reader is not None]

    def _most_read(self) -> int:
        """Return how many prompts may be read at once: a quarter of the slots while requests run."""
        most = max(self.batch.read_counts)
        return most if not self.active else min(most, max(1, self.batch.size.slots // 4))

    def _read_alone(self, job: Job) -> None:
        """Read a chunk of one prompt by itself after an error of several."""
        assert job.reader is not None
        logits = self.prefill.read([job.reader])
        self._begin([] if job.reader.left else [job], logits)

    def _begin(self, jobs: Sequence[Job], logits: Logits | None) -> None:
        """Choose the first token of requests whose prompts are read: each is then in a slot, or has ended."""
        if logits is None:
            return
        noted = [self._guarded(job, lambda job=job: self._note_prompt(job)) for job in jobs]  # type: ignore[misc]
        if not all(noted):  # those whose prompts could not be noted have ended
            kept = [number for number, one in enumerate(noted) if one]
            jobs, logits = [jobs[number] for number in kept], logits[kept]
        if not jobs:
            return
        rows = [job.row for job in jobs if job.row is not None]
        try:
            outputs = advance_rows(logits, rows)
        except Exception:  # no row was advanced yet
            for number, job in enumerate(jobs):
                self._begin_alone(job, logits[number : number + 1])
            return
        for job, output in zip(jobs, outputs, strict=True):
            self._guarded(job, lambda job=job, output=output: self._join(job, output))  # type: ignore[misc]

    def _begin_alone(self, job: Job, logits: Logits) -> None:
        """Choose the first token of one request by itself after an error of several."""
        row = job.row
        assert row is not None
        self._guarded(job, lambda: self._join(job, advance_rows(logits, [row])[0]))

    def _note_prompt(self, job: Job) -> bool:
        """Tell the handle about its prompt."""
        reader = job.reader
        assert reader is not None
        job.handle.cached_tokens = reader.cached
        self.counters.prompt_tokens += len(reader.ids)
        self.counters.cached_tokens += reader.cached
        if job.request.prompt_logprobs is not None:
            job.handle.prompt_logprobs = _prompt_logprobs(reader, job.request.prompt_logprobs)
        return True

    def _join(self, job: Job, output: StepOutput | Exception) -> None:
        """Copy a prompt that is read into the first free slot, unless its request has ended."""
        reader = job.reader
        if self._deliver(job, output) and reader is not None:
            slot = min(set(range(self.batch.size.slots)) - self.active.keys())
            self.prefill.join(reader, slot)
            self.active[slot] = job
        job.release()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Take a step of all active slots."""
        if not self.active:
            return
        self.counters.steps += 1
        begun = self.clock()
        rows = self._rows()
        tokens = {slot: (row.last, row.length - 1) for slot, row in rows.items()}
        try:
            logits = self.batch.step(tokens)
        except Exception:  # no state was written yet but keys and values, which are written again
            self._one_by_one(tokens, lambda slot: self.batch.step_alone(slot, *tokens[slot]))
            self._compact()
            return
        try:
            outputs = advance_rows(logits, list(rows.values()))
        except Exception:  # no row was advanced yet
            order = list(tokens)
            self._one_by_one(tokens, lambda slot: logits[order.index(slot)][None])
            self._compact()
            return
        for slot, output in zip(tokens, outputs, strict=True):
            self._settle(slot, output)
        self._compact()
        self.step_seconds = _smoothed(self.step_seconds, self.clock() - begun)

    def _rows(self) -> dict[int, MixedRow]:
        return {slot: row for slot in sorted(self.active) if (row := self.active[slot].row) is not None}

    def _one_by_one(self, slots: Iterable[int], logits_of: Callable[[int], Logits]) -> None:
        """Advance each slot by itself after an error of all, so that only the guilty request fails."""
        for slot in slots:
            job, row = self.active[slot], self._rows()[slot]
            output = self._guarded(job, lambda slot=slot, row=row: advance_rows(logits_of(slot), [row])[0])  # type: ignore[misc]
            if output is None:
                del self.active[slot]
                self.batch.clear(slot)
            else:
                self._settle(slot, output)

    def _settle(self, slot: int, output: StepOutput | Exception) -> None:
        """Deliver the output of a slot, and free it if the request has ended."""
        job = self.active[slot]
        if not self._deliver(job, output):
            del self.active[slot]
            if isinstance(output, Exception):
                self.batch.clear(slot)

    def _deliver(self, job: Job, output: StepOutput | Exception) -> bool:
        """Report to the client; tell whether the request goes on."""
        if isinstance(output, Exception):
            self._end(job, output)
            return False
        self.counters.new_tokens += output.id is not None
        present = job.report(output)
        if output.reason is not None:
            self.counters.finished += 1
            return False
        if not present:
            self.counters.cancelled += 1
        return present

    def _compact(self) -> None:
        """Move the last slot to the first free one where steps then have fewer rows."""
        while self.active:
            last, count = max(self.active), len(self.active)
            if self.batch.rows_for(last + 1) == self.batch.rows_for(count):
                return
            free = min(set(range(last)) - self.active.keys())
            self.batch.move(last, free)
            self.active[free] = self.active.pop(last)
            self.counters.moved += 1

    # --- searches -----------------------------------------------------------------------------------------------------

    def _search(self) -> None:
        """Take a step of the search whose turn it is."""
        if not self.searching:
            return
        job = self.searching.pop(0)
        going_on = self._guarded(job, lambda: self._search_step(job))
        if going_on:
            self.searching.append(job)

    def _search_step(self, job: Job) -> bool:
        """Take a step of one search; tell whether it goes on."""
        if job.steps is None:
            job.steps = job.search(self.batch.model)
            self.counters.prompt_tokens += len(job.prefill.prompts[0])
        outputs = next(job.steps, None)
        if outputs is None:
            self.counters.finished += 1
            return False
        for output in outputs:
            self.counters.new_tokens += output.id is not None
            if not job.report(output):
                self.counters.cancelled += 1
                return False
        return True


def _smoothed(before: float, now: float) -> float:
    """Return a moving average that starts with its first value."""
    return now if not before else (1 - SMOOTHING) * before + SMOOTHING * now


def _prompt_logprobs(reader: PromptReader, count: int) -> list[TokenLogprobs | None]:
    """Return the log-probability of each prompt token; None for the first, which nothing precedes."""
    found: list[TokenLogprobs | None] = [None]
    at = 1
    for piece in reader.all_logits:
        following = reader.ids[at : at + len(piece)]
        if following:
            chosen = torch.tensor(following, device=piece.device)
            found += chosen_logprobs(piece[: len(following)], chosen, count)
        at += len(piece)
    return found
