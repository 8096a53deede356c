"""Chunked prefill (Sarathi, Agrawal et al. 2024): prompts that join are read chunk by chunk, near lengths side by side.

A chunk begins at a multiple of a fixed length, and its padding depends on the prompt's length alone. So whoever is read
beside a prompt adds rows to its matrix products, and changes nothing else. The numbers of rows that a batch-invariant
engine may use are those that were seen to agree: see `invariance.py`.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.decoding.runtime import Prefill, pad_sources
from heddle.decoding.sampling import Logits
from heddle.nn.state import State, StatePiece, allocate_rows, view_rows, write_pieces, write_row
from heddle.serving.slot_batch import SlotBatch, round_up

PADDING = 16  # a chunk is padded to a multiple of it
BLOCK = 64  # tokens; prompts whose numbers of blocks have equally many bits are near in length


@dataclass
class PromptRows:
    """A state whose rows are prompts that are being read."""

    state: State
    readers: "list[PromptReader | None]"  # of each row; None: the row is free

    def live(self) -> "list[PromptReader]":
        """Return the readers that are left, in order."""
        return [reader for reader in self.readers if reader is not None]


class PromptReader:
    """One prompt, and how far it is read: the row of a state, from the longest prefix that the cache has."""

    def __init__(self, prefill: Prefill, every_logit: bool = False, salt: str = "") -> None:
        self.ids, self.every_logit, self.salt = list(prefill.prompts[0]), every_logit, salt
        self.source = None if prefill.sources is None else prefill.sources[0]
        self.cached = self.at = 0  # tokens that came from the prefix cache; tokens read
        self.pieces: list[StatePiece] = []  # of the cached prefix, until they are copied
        self.all_logits: list[Tensor] = []  # of every position, if they are requested
        self.rows: PromptRows | None = None

    @property
    def left(self) -> int:
        """Return how many tokens are still to be read."""
        return len(self.ids) - self.at

    @property
    def row(self) -> int:
        """Return its row in the state."""
        return 0 if self.rows is None else self.rows.readers.index(self)

    def move(self, rows: PromptRows | None) -> None:
        """Leave the row for one of another state, which has been written; None: for none."""
        if self.rows is not None:
            self.rows.readers[self.row] = None
        self.rows = rows


class ChunkedPrefill:
    """Reads prompts for the slots of a batch."""

    def __init__(self, batch: SlotBatch) -> None:
        self.batch = batch

    # --- which prompts are read together ------------------------------------------------------------------------------

    def choose(self, readers: Sequence[PromptReader], most: int) -> list[PromptReader]:
        """Return which of several prompts are read next, side by side: the first that can be, and others like it."""
        for head in readers:
            if head.source is not None:
                return [head]
            if head.rows is not None:
                return self._beside(head, readers, most)
            if not self._waits(head, readers):
                return self._new_beside(head, readers, most)
        return []

    def _beside(self, head: PromptReader, readers: Sequence[PromptReader], most: int) -> list[PromptReader]:
        """Return the prompts to read beside one that has begun; those that end first leave the others in place."""
        assert head.rows is not None
        if self.batch.counts_tokens:  # rows of other states would have to be copied
            live = head.rows.live()
            return [one for one in live if self._key(one) == self._key(live[-1])]
        alike = [one for one in readers if one.rows is not None and self._key(one) == self._key(head)]
        return sorted(alike[:most], key=lambda one: (one.rows is not head.rows, one.row))

    def _new_beside(self, head: PromptReader, readers: Sequence[PromptReader], most: int) -> list[PromptReader]:
        """Return the prompts to begin with beside another; a prefix that several share is read by one of them."""
        key, chosen = (self._key(head), self._bucket(head)), [head]
        for one in readers:
            if len(chosen) >= most:
                break
            if one is head or one.rows is not None or one.source is not None:
                continue
            if not self._waits(one, [*readers, *chosen]) and not _shares_chunk(one, chosen, self.batch.size.chunk):
                chosen += [one] if (self._key(one), self._bucket(one)) == key else []
        return sorted(chosen, key=lambda one: -len(one.ids))

    def _waits(self, reader: PromptReader, others: Sequence[PromptReader]) -> bool:
        """Look up the prefix of a prompt; tell whether another prompt is about to add more of it to the cache."""
        trie = self.batch.trie
        if trie is None or reader.every_logit:
            return False
        reader.pieces = trie.find(reader.ids[:-1], reader.salt)
        reader.at = reader.cached = reader.pieces[-1].stop if reader.pieces else 0
        begun = [one for one in others if one.rows is not None and one.at <= reader.at]
        return _shares_chunk(reader, begun, self.batch.size.chunk)

    def _key(self, reader: PromptReader) -> Hashable:
        """Return what the next chunks of prompts must share to be read side by side.

        Recurrent parts read no padding, so only whole chunks are alike there.
        """
        piece = self._piece(reader)
        if not self.batch.attention_alone and piece < self.batch.size.chunk:
            return id(reader)
        return reader.at if self.batch.counts_tokens else 0, self._padded(piece)

    def _bucket(self, reader: PromptReader) -> int:
        """Return a number that prompts of near lengths share, whose states may have the same capacity."""
        return (-(-len(reader.ids) // BLOCK)).bit_length() if self.batch.counts_tokens else 0

    def _piece(self, reader: PromptReader) -> int:
        return min(self.batch.size.chunk, reader.left)

    def _padded(self, piece: int) -> int:
        return round_up(piece, PADDING) if self.batch.counts_tokens or self.batch.attention_alone else piece

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, group: Sequence[PromptReader]) -> Logits | None:
        """Read the next chunk of each; return the logits after those that are then read, in order, None: of none.

        The state is written last: after an error the same chunk can be read again.
        """
        batch, pieces = self.batch, [self._piece(one) for one in group]
        rows = self._place(group)
        count = batch.read_rows(len(group))
        padded = self._padded(pieces[0])
        view = self._view(rows, count, group[0].at + padded)
        starts = [one.at for one in group] + [0] * (count - len(group))
        view.lengths.copy_(torch.tensor(starts))
        ids, lengths = self._chunk(group, pieces, padded, count)
        vectors, later = batch.model.step(ids, view, lengths=lengths)
        ended = [row for row, one in enumerate(group) if one.left == pieces[row]]
        logits = self._logits(vectors, pieces, ended) if ended else None
        every = {
            row: batch.model.head.logits(vectors[row, : pieces[row]])
            for row, one in enumerate(group)
            if one.every_logit
        }
        self._keep(rows, view, later)
        for row, one in enumerate(group):
            one.all_logits += [every[row]] if row in every else []
            one.at += pieces[row]
            rows.state.lengths[row] = one.at
            self._remember(one, row, pieces[row])
        return logits

    def _chunk(
        self, group: Sequence[PromptReader], pieces: Sequence[int], padded: int, count: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return the ids of a chunk, padded on the right and below, and its lengths; None: nothing is padding."""
        ids = [[*one.ids[one.at : one.at + n], *(0,) * (padded - n)] for one, n in zip(group, pieces, strict=True)]
        spare, device = count - len(group), self.batch.device
        found = torch.tensor(ids + [[0] * padded] * spare, device=device)
        if min(pieces) == padded:
            return found, None
        return found, torch.tensor([*pieces, *[pieces[0]] * spare], device=device)

    def _logits(self, vectors: Tensor, pieces: Sequence[int], ended: Sequence[int]) -> Logits:
        """Return the logits after the last token of some rows; as many rows are multiplied as may be."""
        last = torch.tensor([n - 1 for n in pieces], device=vectors.device)
        if self.batch.least_rows == 1:
            rows = torch.tensor(ended, device=vectors.device)
            return self.batch.model.head.logits(vectors[rows, last[rows]])
        chosen = vectors.new_zeros(max(len(vectors), self.batch.least_rows), vectors.shape[-1])
        chosen[: len(pieces)] = vectors[torch.arange(len(pieces), device=vectors.device), last]
        logits = self.batch.model.head.logits(chosen)
        return logits[: len(pieces)] if len(ended) == len(pieces) else logits[list(ended)]

    def _view(self, rows: PromptRows, count: int, stop: int) -> State:
        """Return the state with the capacity that tokens up to here need."""
        if rows.readers[0] is not None and rows.readers[0].source is not None:
            return rows.state
        return view_rows(rows.state, count, self._capacity(stop))

    def _capacity(self, length: int) -> int:
        return self.batch.view_capacity(length) if self.batch.counts_tokens else self.batch.size.capacity

    def _keep(self, rows: PromptRows, view: State, later: State) -> None:
        """Keep the state after a step; what is not a cache of tokens is not written in place."""
        if view is rows.state:
            rows.state = later
        else:
            view.update_from(later)

    def _remember(self, reader: PromptReader, row: int, piece: int) -> None:
        """Put a whole chunk into the prefix cache."""
        batch, rows = self.batch, reader.rows
        if batch.trie is not None and piece == batch.size.chunk and rows is not None:
            state = view_rows(rows.state, 1, rows.state.capacity, start=row)
            copy = StatePiece.copy_of(state, batch.axes, reader.at - piece, reader.at)
            batch.trie.store(reader.ids[: reader.at], copy, reader.salt)

    # --- rows of states -----------------------------------------------------------------------------------------------

    def _place(self, group: Sequence[PromptReader]) -> PromptRows:
        """Return a state whose first rows are these prompts, and whose next ones are free: their own, or a new one."""
        rows, count = group[0].rows, self.batch.read_rows(len(group))
        if rows is not None and rows.readers[:count] == [*group, *[None] * (count - len(group))]:
            return rows
        if group[0].source is not None:
            found = PromptRows(self._encoded(group[0]), [None])
        else:
            capacity = self._capacity(max(len(one.ids) for one in group))
            found = PromptRows(allocate_rows(self.batch.blank, count, capacity), [None] * count)
        for row, one in enumerate(group):
            if one.rows is not None:
                write_row(found.state, row, one.rows.state, at=one.row)
            elif one.pieces:
                write_pieces(view_rows(found.state, 1, found.state.capacity, start=row), self.batch.axes, one.pieces)
        for row, one in enumerate(group):
            one.move(found)
            one.pieces, found.readers[row] = [], one
        return found

    def _encoded(self, reader: PromptReader) -> State:
        """Return the state of one row before its prompt, whose source is encoded."""
        batch, source = self.batch, reader.source
        assert source is not None
        memory = batch.model.encode(*pad_sources([source], batch.device)).with_mask()
        state = batch.model.new_state(1, self._capacity(len(reader.ids)), memory)
        return dataclasses.replace(state, cache=batch.blank.cache)

    def join(self, reader: PromptReader, slot: int) -> None:
        """Copy the row of a prompt that is read into a slot."""
        assert reader.rows is not None
        write_row(self.batch.state, slot, reader.rows.state, at=reader.row)
        reader.move(None)


def _shares_chunk(reader: PromptReader, others: Sequence[PromptReader], chunk: int) -> bool:
    """Tell whether the next whole chunk of a prompt is also one that another reads, after the same tokens."""
    stop = reader.at + chunk
    if stop >= len(reader.ids):
        return False
    wanted = reader.ids[:stop]
    return any(one is not reader and one.salt == reader.salt and one.ids[:stop] == wanted for one in others)
