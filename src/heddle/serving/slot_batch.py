"""Slots: the rows of one decoding state of static size, which requests join and leave (continuous batching, Orca 2022).

A prompt is read in a state of its own, in chunks that begin at multiples of a fixed length, and then copied into a
slot. A step reads one token of every active slot. It runs on a view of the first slots and of the filled part of their
capacity. The numbers of rows that a step may have are fixed: see `invariance.py`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.runtime import Prefill, device_of, longest_row, pad_sources
from heddle.decoding.sampling import Logits
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import (
    KVCacheConfig,
    State,
    StatePiece,
    TokenAxes,
    allocate_rows,
    view_rows,
    write_pieces,
    write_row,
)
from heddle.serving.prefix_trie import PrefixTrie

STEP = 64  # the capacity of a view is a multiple of it
MOST_BY_DEFAULT = 4096  # tokens of a slot, unless more are requested
MOST_TOKENS = 1 << 20  # of a row of a recurrent model, whose slots have the same size whatever they have read
PADDING = 16  # a chunk is padded to a multiple of it


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
        self.state = allocate_rows(self.blank, size.slots, size.capacity)
        self.row_counts: tuple[int, ...] = tuple(sorted({min(1 << i, size.slots) for i in range(11)}))
        self.trie = PrefixTrie(budget, size.chunk) if budget and not model.reads_source else None
        self._views: dict[tuple[int, int], State] = {}

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
        capacity = min(-(-longest // STEP) * STEP, self.size.capacity) if self.counts_tokens else self.size.capacity
        if (rows, capacity) not in self._views:
            self._views[rows, capacity] = view_rows(self.state, rows, capacity)
        return self._views[rows, capacity]

    def rows_for(self, slots: int) -> int:
        """Return the number of rows that a step over the first slots has."""
        return next(count for count in self.row_counts if count >= slots)

    def step(self, tokens: Mapping[int, tuple[int, int]]) -> Logits:
        """Read a token in each active slot, given as slot: (id, tokens read before); return their logits, in order."""
        rows = self.rows_for(max(tokens) + 1)
        view = self.view(rows, 1 + max(read for _, read in tokens.values()))
        idle = (0, 0)
        ids = torch.tensor([[tokens.get(slot, idle)[0]] for slot in range(rows)], device=self.device)
        view.lengths.copy_(torch.tensor([tokens.get(slot, idle)[1] for slot in range(rows)]))
        vectors, later = self.model.step(ids, view)
        logits = self.model.head.logits(vectors[:, -1])
        view.update_from(later)
        return logits[list(tokens)]

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


class PromptReader:
    """Reads one prompt chunk by chunk in a state of its own, from the longest prefix that the trie has."""

    def __init__(self, batch: SlotBatch, prefill: Prefill, every_logit: bool = False) -> None:
        self.batch, self.ids, self.every_logit = batch, list(prefill.prompts[0]), every_logit
        self.source = None if prefill.sources is None else prefill.sources[0]
        self.cached = 0  # tokens that came from the prefix cache
        self.at = 0
        self.all_logits: list[Tensor] = []  # of every position, if they are requested
        self.state: State | None = None

    @property
    def left(self) -> int:
        """Return how many tokens are still to be read."""
        return len(self.ids) - self.at

    def begin(self) -> None:
        """Allocate the state: encode the source, or copy a cached prefix."""
        batch, capacity = self.batch, self._capacity(len(self.ids))
        if self.source is not None:
            memory = batch.model.encode(*pad_sources([self.source], batch.device)).with_mask()
            state = batch.model.new_state(1, capacity, memory)
            self.state = dataclasses.replace(state, cache=batch.blank.cache)
            return
        self.state = allocate_rows(batch.blank, 1, capacity)
        if batch.trie is not None and not self.every_logit:
            pieces = batch.trie.find(self.ids[:-1])
            if pieces:
                write_pieces(self.state, batch.axes, pieces)
                self.at = self.cached = pieces[-1].stop

    def _capacity(self, length: int) -> int:
        """Return the capacity of a state for a prompt: room for padding, within the slots' own."""
        batch = self.batch
        if not batch.counts_tokens:
            return batch.size.capacity
        return min(-(-length // STEP) * STEP, batch.size.capacity)

    def read(self) -> Logits | None:
        """Read the next chunk; return the logits of the first new token after the last one."""
        if self.state is None:
            self.begin()
        assert self.state is not None
        batch, start = self.batch, self.at
        stop = min(start + batch.size.chunk, len(self.ids))
        piece, lengths = self._padded(self.ids[start:stop])
        self._view(stop).lengths.fill_(start)
        vectors, later = batch.model.step(piece, self._view(stop), lengths=lengths)
        self._keep(later, stop)
        if self.every_logit:
            self.all_logits.append(batch.model.head.logits(vectors[0, : stop - start]))
        self.at = stop
        self._remember(start, stop)
        return batch.model.head.logits(vectors[:, stop - start - 1]) if stop == len(self.ids) else None

    def _padded(self, ids: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Return a chunk, padded to a multiple, and its length; of a recurrent model, the chunk as it is."""
        batch = self.batch
        missing = -len(ids) % PADDING if batch.counts_tokens else 0
        row = torch.tensor([[*ids, *(0,) * missing]], device=batch.device)
        return row, torch.tensor([len(ids)], device=batch.device) if missing else None

    def _view(self, stop: int) -> State:
        """Return the state with the capacity that tokens up to here need."""
        assert self.state is not None
        capacity = self._capacity(stop)
        same = capacity == self.state.capacity or self.source is not None
        return self.state if same else view_rows(self.state, 1, capacity)

    def _keep(self, later: State, stop: int) -> None:
        """Keep the state after a step; what is not a cache of tokens is not written in place."""
        assert self.state is not None
        if self.source is not None:
            self.state = later
        else:
            self._view(stop).update_from(later)
        self.state.lengths.fill_(stop)

    def _remember(self, start: int, stop: int) -> None:
        """Put a whole chunk into the trie."""
        trie = self.batch.trie
        if trie is not None and stop - start == self.batch.size.chunk and self.state is not None:
            piece = StatePiece.copy_of(self.state, self.batch.axes, start, stop)
            trie.store(self.ids[:stop], piece)

    def join(self, slot: int) -> None:
        """Copy the row into a slot."""
        assert self.state is not None
        write_row(self.batch.state, slot, self.state)
        self.state = None


def batch_capacity(model: AutoregressiveModel, wanted: int | None) -> int:
    """Return the capacity of slots: as requested, within what the model can read."""
    longest = longest_row(model)
    if longest is None:
        return MOST_TOKENS if wanted is None else wanted
    if wanted is not None and wanted > longest:
        raise UsageError(f"capacity: want at most the model's {longest} positions, got {wanted}")
    return min(longest, MOST_BY_DEFAULT) if wanted is None else wanted
