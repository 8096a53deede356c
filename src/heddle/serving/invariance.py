"""Batch invariance of serving: the same bits for a request whatever its neighbours, checked on the model at start.

A prompt is read in chunks that depend on nothing but its length. What is left are its neighbours: the rows of a step,
and the prompts that are read beside it. A matrix product may take another kernel for another number of rows, so only
numbers of rows are used that were seen to agree; in steps, fewer than four never do. With several threads, attention is
computed row by row.
"""

import logging
import random
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from heddle.core import EnvironmentFault
from heddle.core.system import BatchInvariance, batch_invariant
from heddle.decoding.runtime import Prefill, PrefillOptions, Request, prepare_prefill
from heddle.nn.state import State, write_row
from heddle.serving.chunked_prefill import ChunkedPrefill, PromptReader
from heddle.serving.slot_batch import MAX_PREFILL_ROWS, SlotBatch

MIN_ROWS = 4
ROW_COUNTS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
READ_COUNTS = (1, 2, 4, 8, MAX_PREFILL_ROWS)
MAX_FOR_ONE = 4  # rows that a prompt which is read alone may cost
PROBE_SECONDS = 3.0  # after which no larger number of prompts is tried
STEPS = 2  # steps whose logits are compared

log = logging.getLogger("heddle")


def make_invariant(batch: SlotBatch) -> BatchInvariance:
    """Set the numbers of rows that agree, and return the mode in which they do; refuse where none does.

    May reduce the threads of this process to one.
    """
    batch.least_rows, batch.read_counts = MIN_ROWS, (1,)
    try:
        mode = _working_mode(batch)
        with batch_invariant(mode):
            batch.read_counts = _agreeing_reads(batch)
        log.info("invariant: %s prompts are read side by side with equal bits", batch.read_counts)
        return mode
    finally:
        if batch.trie is not None:
            batch.trie.clear()  # of the probe's prompts


def _working_mode(batch: SlotBatch) -> BatchInvariance:
    on_cpu = batch.device.type == "cpu"
    one_thread = on_cpu and torch.get_num_threads() == 1
    modes = [BatchInvariance()] if one_thread else [BatchInvariance(), BatchInvariance(True)]
    for mode in modes:
        for batch.whole_capacity in (False, True):
            if _agreeing_rows(batch, mode):
                return mode
    batch.whole_capacity = False
    if on_cpu and not one_thread:
        torch.set_num_threads(1)
        if _agreeing_rows(batch, BatchInvariance()):
            return BatchInvariance()
    raise EnvironmentFault("invariant: want equal bits for a request among others; this machine does not give them")


def _agreeing_rows(batch: SlotBatch, mode: BatchInvariance) -> bool:
    """Keep the numbers of rows that give the same bits as all slots; tell whether slot and neighbours do not matter."""
    most = batch.size.slots
    batch.drop_graphs()
    with batch_invariant(mode):
        probe = _Probe(batch)
        wanted = probe.run(most, 0, fill=False)
        if not torch.equal(wanted, probe.run(most, most - 1, fill=True)):
            return False
        fewer = [count for count in ROW_COUNTS if MIN_ROWS <= count < most]
        agreeing = [count for count in fewer if _agrees(probe, count, wanted)]
        if not torch.equal(wanted, probe.run((*agreeing, most)[0], 0, fill=False, longest=batch.size.capacity)):
            return False
    batch.row_counts = (*agreeing, most)
    log.info("invariant: steps of %s rows agree%s", batch.row_counts, ", attention by row" * mode.attention_by_row)
    return True


def _agreeing_reads(batch: SlotBatch) -> tuple[int, ...]:
    """Return the numbers of prompts that can be read side by side with the same bits: as many as possible, or one."""
    if batch.model.reads_source:
        return (1,)
    begun, found = time.monotonic(), dict[int, Tensor]()
    for count in READ_COUNTS:
        first, last = (_read_among(batch, count, place, fill) for place, fill in ((0, False), (count - 1, True)))
        if torch.equal(first, last):
            found[count] = first
        if time.monotonic() - begun > PROBE_SECONDS:
            break
    alike = {one: tuple(n for n in found if torch.equal(found[n], found[one])) for one in found}
    largest = alike.get(max(found, default=1), (1,))
    return largest if min(largest) <= MAX_FOR_ONE else alike.get(1, (1,))


def _read_among(batch: SlotBatch, count: int, place: int, fill: bool) -> Tensor:
    """Return the logits after a probe's prompt that is read in a place of several; fill: beside other prompts."""
    draw, length = random.Random(1), min(batch.size.chunk + 3, batch.size.capacity - 1)
    prompts = [[draw.randrange(batch.model.vocab) for _ in range(max(1, length))] for _ in range(count)]
    prompts[0], prompts[place] = prompts[place], prompts[0]
    chosen = prompts if fill else prompts[:1]
    options = PrefillOptions(1, None, None, batch.size.chunk, batch.blank.cache)
    readers = [PromptReader(prepare_prefill(batch.model, [Request(ids)], options), every_logit=True) for ids in chosen]
    prefill, saved = ChunkedPrefill(batch), batch.read_counts
    batch.read_counts = (count,)
    try:
        while readers[0].left:
            logits = prefill.read(readers)
    finally:
        batch.read_counts = saved
    assert logits is not None
    return torch.cat([*readers[place].all_logits, logits[place : place + 1]])


def _agrees(probe: "_Probe", count: int, wanted: Tensor) -> bool:
    """Tell whether a number of rows gives the wanted bits, in its first slot alone and in its last among others."""
    places = ((0, False), (count - 1, True))
    return all(torch.equal(wanted, probe.run(count, slot, fill)) for slot, fill in places)


class _Probe:
    """One request of random ids, decoded for a few steps in different slots and company."""

    def __init__(self, batch: SlotBatch) -> None:
        self.batch = batch
        draw = random.Random(0)
        room = batch.size.capacity - STEPS
        lengths = [min(5, room), min(batch.size.chunk + 3, room), min(150, room)]
        self.prompts = [[draw.randrange(batch.model.vocab) for _ in range(max(1, length))] for length in lengths]
        self.sources = [self._source(draw, length) for length in (7, 3, 11)]
        self.states: dict[int, State] = {}  # of the prompts, once read

    def _source(self, draw: random.Random, length: int) -> list[int] | None:
        if not self.batch.model.reads_source:
            return None
        return [draw.randrange(self.batch.model.vocab) for _ in range(min(length, self.batch.size.source))]

    def run(self, rows: int, slot: int, fill: bool, longest: int = 0) -> Tensor:
        """Return the logits of a few steps of the first prompt in a slot; fill: the other slots decode others."""
        batch = self.batch
        others = [other for other in range(rows) if other != slot] if fill else []
        read = {other: self._join(1 + number % 2, other) for number, other in enumerate(others)}
        read[slot] = self._join(0, slot)
        found, saved = [], batch.row_counts
        batch.row_counts = (rows,)
        try:
            for step in range(STEPS):
                ids = {place: (7 * step + (0 if place == slot else place)) % batch.model.vocab for place in read}
                logits = batch.step({place: (ids[place], n + step) for place, n in read.items()}, longest)
                found.append(logits[list(read).index(slot)].clone())
        finally:
            batch.row_counts = saved
        return torch.stack(found)

    def _join(self, number: int, slot: int) -> int:
        """Copy one of the prompts, which is read once, into a slot; return its length."""
        if number not in self.states:
            reader = PromptReader(self._prefill(number), every_logit=True)
            while reader.left:
                ChunkedPrefill(self.batch).read([reader])
            assert reader.rows is not None
            self.states[number] = reader.rows.state
        write_row(self.batch.state, slot, self.states[number])
        return len(self.prompts[number])

    def _prefill(self, number: int) -> Prefill:
        options = PrefillOptions(STEPS, None, None, self.batch.size.chunk, self.batch.blank.cache)
        sources: Sequence[int] | None = self.sources[number]
        return prepare_prefill(self.batch.model, [Request(self.prompts[number], sources)], options)
