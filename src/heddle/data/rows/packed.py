"""Sequence packing: documents end to end, cut into full rows, so that nothing but the last row is padded.

A stored document is s = [t1 .. tn, end]; its training pairs are inputs [end, t1 .. tn] and targets s. So each stored
token is a target exactly once, the first is predicted from `end`, and nothing crosses a boundary. An epoch's stream
has the pairs of all documents end to end; because documents close with `end` and begin after it, each input in the
stream is the target before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import Positive, part, replace
from heddle.core.shapes import Tensor
from heddle.data.rows.loader import Batch, EpochCache, Row, RowPlan, joined
from heddle.data.rows.plan import RowsConfig, check_corpus, permutation, random_bits
from heddle.data.shards import Shards

Boundaries = Literal["reset", "stream"]
Places = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows, and where in them
DOCUMENT = 300  # tokens of a random document, about


@dataclass(frozen=True)
class TokenStream:
    """The training pairs of one epoch: pieces of documents, end to end."""

    shards: Shards
    begins: NDArray[np.int64]  # where each piece begins in the shards
    edges: NDArray[np.int64]  # where each piece begins in the stream, and where the last one ends

    def take(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64], out: NDArray[Any], weights: NDArray[np.float32]
    ) -> Places:
        """Write the pairs starts .. stops as rows of tokens, one more than pairs, and of weights.

        Return the rows and places where pieces begin. Where there is a loss mask, the pair that leads into a document
        is a piece of its own.
        """
        first = self.edges.searchsorted(starts, "right") - 1
        counts = np.where(stops > starts, self.edges.searchsorted(stops, "left") - first, 0)
        rows = np.repeat(np.arange(len(starts)), counts)
        pieces = np.arange(len(rows)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        edges, whole = self.edges[pieces], starts[rows]
        left = np.maximum(edges, whole)
        places, until = left - whole, np.minimum(self.edges[pieces + 1], stops[rows]) - whole
        begins = self.begins[pieces] + left - edges
        # Pieces that are neighbours on disk too are read in one go.
        apart = (rows[1:] != rows[:-1]) | (begins[1:] != begins[:-1] + until[:-1] - places[:-1])
        runs = np.flatnonzero(np.concatenate(([True], apart))) if len(rows) else rows
        lasts = np.append(runs[1:], len(rows))[: len(runs)] - 1
        self.shards.fill_rows(out, (rows[runs], places[runs]), begins[runs], until[lasts] - places[runs])
        if self.shards.loss_mask is None:
            weights[:] = np.arange(weights.shape[1]) < (stops - starts)[:, None]
            return rows, places
        for row, place, stop, begin in np.stack([rows[runs], places[runs], until[lasts], begins[runs]], 1).tolist():
            self.shards.fill_weights(weights[row, place:stop], begin)
        opening = self.shards.opens(begins) & (until - places > 1)
        return np.append(rows, rows[opening]), np.append(places, places[opening] + 1)

    def starts_document(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell at which pairs a document, or a piece of one, begins."""
        return np.asarray(self.edges[self.edges.searchsorted(places)] == places)


def stored_order(shards: Shards) -> TokenStream:
    """Return the documents in the order in which they are stored."""
    edges = np.concatenate([[0], shards.ends])
    return TokenStream(shards, edges[:-1], edges)


def shuffled_order(shards: Shards, seed: int, epoch: int, length: int) -> TokenStream:
    """Return the documents shuffled, in an order of the epoch's own.

    The first document is cut at a random place and its head moved to the end of the stream, so that rows fall
    differently in each epoch even when the corpus is a single long document; not when all fits one row, for that row
    would show the token before the cut ahead of predicting it.
    """
    order = permutation(shards.count, seed, "documents", epoch)
    sizes = shards.lengths[order]
    begins = shards.ends[order] - sizes
    cut = int(random_bits(1, seed, "cut", epoch)[0] % np.uint64(sizes[0]))
    if cut and shards.tokens > length:
        begins = np.append(begins, begins[0])
        sizes = np.append(sizes, cut)
        begins[0] += cut
        sizes[0] -= cut
    return TokenStream(shards, begins, np.concatenate([[0], np.cumsum(sizes)]))


@dataclass(frozen=True)
class PackedArrays:
    """Several rows of one shape as arrays; the fields are those of `Row`, with a dimension before them."""

    tokens: NDArray[Any]
    weights: NDArray[np.float32]
    documents: NDArray[np.int64] | None
    positions: NDArray[np.int64] | None
    inputs: NDArray[Any] | None
    fresh: NDArray[np.bool_] | None

    def row(self) -> Row:
        """Return the only row."""
        optional = {"documents": self.documents, "positions": self.positions, "inputs": self.inputs}
        more = {name: value[0] for name, value in optional.items() if value is not None}
        return Row(self.tokens[0], self.weights[0], fresh=None if self.fresh is None else bool(self.fresh[0]), **more)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Return all rows as a batch."""
        tokens = torch.from_numpy(self.tokens.astype(np.int64))
        inputs = tokens[:, :-1].contiguous() if self.inputs is None else torch.from_numpy(self.inputs.astype(np.int64))
        more = {"documents": self.documents, "positions": self.positions, "fresh": self.fresh}
        return Batch(
            inputs=inputs,
            targets=tokens[:, 1:].contiguous(),
            weights=torch.from_numpy(self.weights),
            rows=torch.from_numpy(numbers),
            **{name: torch.from_numpy(value) for name, value in more.items() if value is not None},
        )


def cut_rows(
    stream: TokenStream,
    spans: tuple[NDArray[np.int64], NDArray[np.int64]],
    length: int,
    boundaries: Boundaries,
    fresh: NDArray[np.bool_] | None = None,
) -> PackedArrays:
    """Cut the pairs of spans, from their starts to their stops, out of a stream and pad each to the length."""
    starts, stops = spans
    tokens = np.full((len(starts), length + 1), stream.shards.end, stream.shards.dtype)
    weights = np.zeros((len(starts), length), np.float32)
    begun = stream.take(starts, stops, tokens, weights)
    inputs = with_begin_token(tokens, begun, stream.shards)
    if boundaries == "stream":
        return PackedArrays(tokens, weights, None, None, inputs, fresh)
    documents, positions = _document_ids(begun, stops - starts, length)
    return PackedArrays(tokens, weights, documents, positions, inputs, fresh)


def _document_ids(begun: Places, used: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return document indices and positions of rows; what is left over is padding, one more document."""
    index, begins = np.arange(length), np.zeros((len(used), length), bool)
    begins[begun] = True
    padded = np.flatnonzero(used < length)
    begins[padded, used[padded]] = True
    return begins.cumsum(axis=1) - 1, index - np.maximum.accumulate(np.where(begins, index, 0), axis=1)


def with_begin_token(tokens: NDArray[Any], begun: tuple[NDArray[np.int64], ...], shards: Shards) -> NDArray[Any] | None:
    """Return the inputs of rows whose documents begin with an id of their own; None: the stored tokens.

    The token stored before a document is the end of another. A piece that continues a document is left as it is.
    """
    if shards.begin == shards.end:
        return None
    inputs = tokens[..., :-1].copy()
    opens = inputs[begun] == shards.end
    inputs[tuple(index[opens] for index in begun)] = shards.begin
    return inputs


# --- the rows ---------------------------------------------------------------------------------------------------------


@part("packed")
class PackedRows(RowsConfig):
    """Sequence packing: documents end to end in a new order each epoch, cut into rows, which are shuffled too.

    length: tokens in a row: the context that the model is trained at.
    boundaries: `reset` keeps the documents of a row apart, `stream` joins them.
    shuffle: whether documents and rows come in a new order each epoch.
    recut: whether rows are cut anew each epoch; false: the same rows in another order, as static masks need them.
    """

    length: Positive = 256
    boundaries: Boundaries = "reset"
    shuffle: bool = True
    recut: bool = True

    mixable: ClassVar[bool] = True

    @property
    def separates_documents(self) -> bool:
        return self.boundaries == "reset"

    @property
    def repeats_rows(self) -> bool:
        return not (self.shuffle and self.recut)

    @property
    def fixed_shape(self) -> bool:
        return True

    @property
    def max_length(self) -> int:
        return self.length

    def build(self, shards: Shards, seed: int, source: Shards | None = None) -> RowPlan:
        check_corpus(shards, source, self.length, "one row")
        return PackedPlan(self, shards, seed)

    def for_validation(self, shards: Shards, batch: int) -> Self:
        return replace(self, shuffle=False, length=min(self.length, shards.tokens))

    def random_fields(self, vocab: int, rows: int, number: int, draw: torch.Generator) -> dict[str, Tensor]:
        if self.boundaries == "stream":
            return {}
        begins = torch.rand(rows, self.length, generator=draw) < 1 / DOCUMENT
        begins[:, 0] = True
        index = torch.arange(self.length).expand(rows, self.length)
        positions = index - index.where(begins, 0).cummax(dim=1).values
        return {"documents": begins.long().cumsum(1) - 1, "positions": positions}


class PackedPlan(RowPlan):
    """Packed rows; only the last cut of an epoch is padded."""

    def __init__(self, config: PackedRows, shards: Shards, seed: int) -> None:
        self._config, self._tokens = config, shards.tokens
        self.length = config.length
        self.rows_per_epoch = -(-shards.tokens // config.length)
        self._epoch = EpochCache(partial(_packed_epoch, config, shards, seed, self.rows_per_epoch))

    def row(self, number: int) -> Row:
        return self._cut(*divmod(np.array([number]), self.rows_per_epoch)).row()

    def build_batch(self, numbers: Sequence[int]) -> Batch:
        every = np.asarray(numbers, np.int64)
        epochs, index = np.divmod(every, self.rows_per_epoch)
        return joined(epochs, lambda some: self._cut(epochs[some], index[some]).batch(every[some]))

    def _cut(self, epochs: NDArray[np.int64], index: NDArray[np.int64]) -> PackedArrays:
        """Cut some rows of one epoch."""
        stream, order = self._epoch(int(epochs[0]))
        starts = order[index] * self.length
        spans = starts, np.minimum(starts + self.length, self._tokens)
        return cut_rows(stream, spans, self.length, self._config.boundaries)


def _packed_epoch(
    config: PackedRows, shards: Shards, seed: int, rows: int, epoch: int
) -> "tuple[TokenStream, NDArray[np.int64]]":
    if not config.shuffle:
        return stored_order(shards), np.arange(rows)
    cut = epoch if config.recut else 0
    return shuffled_order(shards, seed, cut, config.length), permutation(rows, seed, "rows", epoch)
