"""Batch invariance of serving: the same bits for a request whatever its neighbours, checked on the model at start.

A prompt is read alone, in chunks that depend on nothing but its length. What is left are steps, whose rows are other
requests. A matrix product may take another kernel for another number of rows, so only numbers of rows are used that
were seen to agree; fewer than four rows never do. With several threads, attention is computed row by row.
"""

import logging
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from heddle.core import EnvironmentFault
from heddle.core.system import BatchInvariance, batch_invariant
from heddle.decoding.runtime import Prefill, PrefillOptions, Request, prepare_prefill
from heddle.nn.state import State, write_row
from heddle.serving.slot_batch import PromptReader, SlotBatch

LEAST_ROWS = 4
ROW_COUNTS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
STEPS = 2  # steps whose logits are compared

log = logging.getLogger("heddle")


def make_invariant(batch: SlotBatch) -> BatchInvariance:
    """Set the numbers of rows that agree, and return the mode in which they do; refuse where none does.

    May reduce the threads of this process to one.
    """
    try:
        return _working_mode(batch)
    finally:
        if batch.trie is not None:
            batch.trie.clear()  # of the probe's prompts


def _working_mode(batch: SlotBatch) -> BatchInvariance:
    modes = [BatchInvariance()] if torch.get_num_threads() == 1 else [BatchInvariance(), BatchInvariance(True)]
    for mode in modes:
        if _agreeing_rows(batch, mode):
            return mode
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        if _agreeing_rows(batch, BatchInvariance()):
            return BatchInvariance()
    raise EnvironmentFault("invariant: want equal bits for a request among others; this machine does not give them")


def _agreeing_rows(batch: SlotBatch, mode: BatchInvariance) -> bool:
    """Keep the numbers of rows that give the same bits as all slots; tell whether slot and neighbours do not matter."""
    most = batch.size.slots
    with batch_invariant(mode):
        probe = _Probe(batch)
        wanted = probe.run(most, 0, fill=False)
        if not torch.equal(wanted, probe.run(most, most - 1, fill=True)):
            return False
        fewer = [count for count in ROW_COUNTS if LEAST_ROWS <= count < most]
        agreeing = [count for count in fewer if _agrees(probe, count, wanted)]
    batch.row_counts = (*agreeing, most)
    log.info("invariant: steps of %s rows agree%s", batch.row_counts, ", attention by row" * mode.attention_by_row)
    return True


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

    def run(self, rows: int, slot: int, fill: bool) -> Tensor:
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
                logits = batch.step({place: (ids[place], n + step) for place, n in read.items()})
                found.append(logits[list(read).index(slot)].clone())
        finally:
            batch.row_counts = saved
        return torch.stack(found)

    def _join(self, number: int, slot: int) -> int:
        """Copy one of the prompts, which is read once, into a slot; return its length."""
        if number not in self.states:
            reader = PromptReader(self.batch, self._prefill(number), every_logit=True)
            while reader.left:
                reader.read()
            assert reader.state is not None
            self.states[number] = reader.state
        write_row(self.batch.state, slot, self.states[number])
        return len(self.prompts[number])

    def _prefill(self, number: int) -> Prefill:
        options = PrefillOptions(STEPS, None, None, self.batch.size.chunk, self.batch.blank.cache)
        sources: Sequence[int] | None = self.sources[number]
        return prepare_prefill(self.batch.model, [Request(self.prompts[number], sources)], options)
