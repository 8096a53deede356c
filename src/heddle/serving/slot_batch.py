"""Slots: the rows of one decoding state of static size, which requests join and leave (continuous batching, Orca 2022).

A prompt is read in a state of its own (`chunked_prefill.py`) and then copied into a slot. A step reads one token of
every active slot. It runs on a view of the first slots and of the filled part of their capacity. The numbers of rows
that a step may have are fixed: see `invariance.py`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.core.shapes import Ids
from heddle.decoding.runtime import CapturedGraph, CaptureMode, device_of, longest_row
from heddle.decoding.sampling import Logits
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import (
    KVCache,
    KVCacheConfig,
    State,
    TokenAxes,
    allocate_rows,
    summaries,
    view_rows,
    write_row,
)
from heddle.serving.prefix_trie import PrefixTrie

STEP = 64  # the capacity of a view is a multiple of it
CAPTURED = 256  # the least capacity of a captured step; each next one is four times as large
MAX_PREFILL_ROWS = 16  # prompts read side by side
DEFAULT_CAPACITY = 4096  # tokens of a slot, unless more are requested


@dataclass(frozen=True)
class BatchSize:
    """The size of the state: slots, tokens of each, tokens of each source, and tokens of a prompt read at once."""

    slots: int
    capacity: int
    source: int
    chunk: int


class SlotBatch:
    """The state of all slots, and what reads prompts and steps on it. Used by one thread, in inference mode."""

    def __init__(self, model: AutoregressiveModel, size: BatchSize, cache: KVCacheConfig, budget: int) -> None:
        self.model, self.size, self.device = model, size, device_of(model)
        self.blank = self._blank(cache)
        self.axes = TokenAxes.of(self.blank)
        self.counts_tokens = any(axis is not None for axes in self.axes.by_slot.values() for axis in axes)
        self.attention_alone = all(isinstance(slot, KVCache) for slot in self.blank.slots.values())
        self.state = allocate_rows(self.blank, size.slots, size.capacity)
        self.row_counts: tuple[int, ...] = tuple(sorted({*(min(1 << i, size.slots) for i in range(11)), size.slots}))
        self.read_counts: tuple[int, ...] = tuple(
            range(1, MAX_PREFILL_ROWS + 1)
        )  # numbers of prompts read side by side
        self.least_rows = 1  # of a matrix product
        self.trie = PrefixTrie(budget, size.chunk) if budget and not model.reads_source else None
        self._views: dict[tuple[int, int], State] = {}
        self.whole_capacity = False  # steps view all of it, where the bits of a row depend on how much they view
        self.captures = False  # steps are CUDA graphs
        self.ids = torch.zeros(size.slots, 1, dtype=torch.long, device=self.device)
        self._graphs: dict[tuple[int, int], CapturedGraph[Logits]] = {}
        self._held: list[Tensor] = []  # what graphs read, which must not be freed

    def _blank(self, cache: KVCacheConfig) -> State:
        """Return a state of one empty row; its shapes are those that a first token makes."""
        model, size = self.model, self.size
        model.decoder_tower.position.reserve(size.capacity)
        first = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        memory = None
        if model.reads_source:
            memory = model.encode(first.expand(1, size.source)).with_mask()
        state = model.new_state(1, size.capacity, memory)
        _, after = model.step(first, dataclasses.replace(state, cache=cache))
        return allocate_rows(after, 1, size.capacity)

    def row_bytes(self) -> int:
        """Return the bytes of one slot."""
        return self.state.nbytes() // self.size.slots

    def view(self, rows: int, longest: int) -> State:
        """Return the first rows with capacity for rows of a length."""
        capacity = self._step_capacity(longest)
        if (rows, capacity) not in self._views:
            self._views[rows, capacity] = view_rows(self.state, rows, capacity)
        return self._views[rows, capacity]

    def _step_capacity(self, longest: int) -> int:
        """Return the capacity that a step views: few different ones where each is captured."""
        if self.whole_capacity or not self.counts_tokens:
            return self.size.capacity
        if not self.captures:
            return self.view_capacity(longest)
        capacity = CAPTURED
        while capacity < longest:
            capacity *= 4
        return min(capacity, self.size.capacity)

    def view_capacity(self, length: int) -> int:
        """Return the capacity of a view for rows of a length: a function of nothing else."""
        return min(round_up(length, STEP), self.size.capacity)

    def rows_for(self, slots: int) -> int:
        """Return the number of rows that a step over the first slots has."""
        return next(count for count in self.row_counts if count >= slots)

    def read_rows(self, prompts: int) -> int:
        """Return the number of rows in which prompts are read side by side."""
        return next(count for count in self.read_counts if count >= prompts)

    def step(self, tokens: Mapping[int, tuple[int, int]], longest: int = 0) -> Logits:
        """Read a token in each active slot, given as slot: (id, tokens read before); return their logits, in order.

        They may lie where the next step writes. The view has capacity for the longest row, at least for `longest`.
        """
        rows, slots = self.rows_for(max(tokens) + 1), list(tokens)
        view = self.view(rows, max(longest, 1 + max(read for _, read in tokens.values())))
        both = torch.zeros(2, rows, dtype=torch.long)
        both[:, slots] = torch.tensor([*tokens.values()]).T
        ids, lengths = both.to(self.device)
        self.ids[:rows, 0] = ids
        view.lengths.copy_(lengths)
        logits = self._run(rows, view)
        return logits[: len(slots)] if slots == [*range(len(slots))] else logits[slots]

    def _run(self, rows: int, view: State) -> Logits:
        """Take a step of a view, by a CUDA graph if steps are captured."""
        if not self.captures:
            return decode_rows(self.model, self.ids[:rows], view)
        if (rows, view.capacity) not in self._graphs:
            self._graphs[rows, view.capacity] = self._capture(rows, view)
        return self._graphs[rows, view.capacity].run(self.model)

    def _capture(self, rows: int, view: State) -> CapturedGraph[Logits]:
        """Capture a step of a view, which runs it a few times: what that changes is put back."""
        self._held = [*self.model.parameters(), *self.model.buffers()]
        changed = [view.lengths, *summaries(view, self.axes)]
        before = [tensor.clone() for tensor in changed]
        graph = CapturedGraph(decode_rows, (self.ids[:rows], view), CaptureMode.CAPTURED)
        graph.recapture(self.model)
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(old)
        return graph

    def drop_graphs(self) -> None:
        """Drop all captured steps: another mode computes them otherwise."""
        self._graphs.clear()

    def warm_up(self) -> None:
        """Capture the steps of all numbers of rows and capacities, so that no request waits for it."""
        capacities = {self._step_capacity(length) for length in (1, *(CAPTURED << i for i in range(20)))}
        for rows in self.row_counts:
            for capacity in sorted(capacities):
                self._run(rows, self.view(rows, capacity))

    def step_alone(self, slot: int, id: int, read: int) -> Logits:
        """Read a token of one slot in a copy of its row: what an error of the whole step leaves to try."""
        row = self.state.select(torch.tensor([slot], device=self.device))
        row.lengths.fill_(read)
        vectors, later = self.model.step(torch.tensor([[id]], device=self.device), row)
        write_row(self.state, slot, later)
        return self.model.head.logits(vectors[:, -1])

    def move(self, source: int, target: int) -> None:
        """Copy a slot over another."""
        write_row(self.state, target, self.state, at=source)

    def clear(self, slot: int) -> None:
        """Write zeros over a slot, so that numbers which are none cannot reach the next request through a mask."""
        write_row(self.state, slot, self.blank)


def decode_rows(model: AutoregressiveModel, ids: Ids, state: State) -> Logits:
    """Read one token of each row, overwriting the state; return the logits of the next."""
    vectors, later = model.step(ids, state)
    logits = model.head.logits(vectors[:, -1])
    state.update_from(later)
    return logits


def batch_capacity(model: AutoregressiveModel, wanted: int | None) -> int:
    """Return the capacity of slots: as requested, within what the model can read.

    A recurrent model reads rows of any length, and its slots have one size; by default they end where others do.
    """
    longest = longest_row(model)
    if longest is None:
        return max(model.context, DEFAULT_CAPACITY) if wanted is None else wanted
    if wanted is not None and wanted > longest:
        raise UsageError(f"capacity: want at most the model's {longest} positions, got {wanted}")
    return min(longest, DEFAULT_CAPACITY) if wanted is None else wanted


def round_up(number: int, multiple: int) -> int:
    """Return the least multiple that is not smaller."""
    return -(-number // multiple) * multiple
