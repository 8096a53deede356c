"""Sequence packing: documents end to end, cut into full rows, so that nothing but the last row is padded.

A stored document is s = [t1 .. tn, end]; its training pairs are inputs [end, t1 .. tn] and targets s. So each stored
token is a target exactly once, the first is predicted from `end`, and nothing crosses a boundary. An epoch's stream
has the pairs of all documents end to end; because documents close with `end` and begin after it, each input in the
stream is the target before it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import Positive, part, replace
from heddle.core.shapes import Tensor
from heddle.data.rows.loader import EpochCache, Row, RowPlan
from heddle.data.rows.plan import RowsConfig, check_corpus, permutation, random_bits
from heddle.data.shards import Shards

Boundaries = Literal["reset", "stream"]
DOCUMENT = 300  # tokens of a random document, about


@dataclass(frozen=True)
class TokenStream:
    """The training pairs of one epoch: pieces of documents, end to end."""

    shards: Shards
    begins: NDArray[np.int64]  # where each piece begins in the shards
    edges: NDArray[np.int64]  # where each piece begins in the stream, and where the last one ends

    def take(self, start: int, stop: int, out: NDArray[Any], weights: NDArray[np.float32]) -> NDArray[np.int64]:
        """Write the pairs start .. stop as tokens, one more than pairs, and their weights; return the pieces' sizes.

        Where there is a loss mask, the pair that leads into a document is a piece of its own.
        """
        first = int(self.edges.searchsorted(start, "right")) - 1
        last = int(self.edges.searchsorted(stop, "left"))
        cuts = self.edges[first : last + 1].copy()
        begins = self.begins[first:last].copy()
        begins[0] += start - cuts[0]
        cuts[0], cuts[-1] = start, stop
        sizes = cuts[1:] - cuts[:-1]
        # Pieces that are neighbours on disk too are read in one go.
        apart = np.flatnonzero(begins[1:] != begins[:-1] + sizes[:-1]) + 1
        runs = [0, *apart.tolist()]
        places = [*(cuts[runs] - start).tolist(), stop - start]
        for place, until, begin in zip(places, places[1:], begins[runs].tolist(), strict=False):
            self.shards.fill(out[place : until + 1], begin)
            self.shards.fill_weights(weights[place:until], begin)
        return sizes if self.shards.loss_mask is None else split_off_openings(sizes, self.shards.opens(begins))

    def starts_document(self, place: int) -> bool:
        """Tell whether a document, or a piece of one, begins at this pair."""
        return int(self.edges[self.edges.searchsorted(place)]) == place


def split_off_openings(sizes: NDArray[np.int64], opens: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Split off the first pair of each piece that opens a document.

    A conversation begins with the first token of its template, not with the end of another document, as it does when
    the model answers; so the pair before is no part of it.
    """
    parts = np.stack([opens.astype(np.int64), sizes - opens], axis=1).ravel()
    return parts[parts > 0]


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


def cut_row(
    stream: TokenStream, span: tuple[int, int], length: int, boundaries: Boundaries, fresh: bool | None = None
) -> Row:
    """Cut the pairs of a span out of a stream and pad them to the length."""
    start, stop = span
    count = stop - start
    tokens = np.empty(length + 1, stream.shards.dtype)
    tokens[count:] = stream.shards.end
    weights = np.zeros(length, np.float32)
    sizes = stream.take(start, stop, tokens[: count + 1], weights[:count]) if count else np.zeros(0, np.int64)
    inputs = with_begin_token(tokens, np.cumsum(sizes) - sizes, stream.shards)
    if boundaries == "stream":
        return Row(tokens, weights, fresh=fresh, inputs=inputs)
    documents, positions = _document_ids(sizes, length)
    return Row(tokens, weights, documents, positions, fresh, inputs=inputs)


def _document_ids(sizes: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return document indices and positions of a row; what the sizes leave over is padding, one more document."""
    used = int(sizes.sum())
    if used < length:
        sizes = np.append(sizes, length - used)
    starts = np.cumsum(sizes) - sizes
    return np.repeat(np.arange(len(sizes)), sizes), np.arange(length) - np.repeat(starts, sizes)


def with_begin_token(tokens: NDArray[Any], starts: NDArray[np.int64], shards: Shards) -> NDArray[Any] | None:
    """Return the inputs of a row whose documents begin with an id of their own; None: the stored tokens.

    The token stored before a document is the end of another. A piece that continues a document is left as it is.
    """
    if shards.begin == shards.end:
        return None
    inputs = tokens[:-1].copy()
    inputs[starts[inputs[starts] == shards.end]] = shards.begin
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
        epoch, index = divmod(number, self.rows_per_epoch)
        stream, order = self._epoch(epoch)
        start = int(order[index]) * self.length
        span = start, min(start + self.length, self._tokens)
        return cut_row(stream, span, self.length, self._config.boundaries)


def _packed_epoch(
    config: PackedRows, shards: Shards, seed: int, rows: int, epoch: int
) -> "tuple[TokenStream, NDArray[np.int64]]":
    if not config.shuffle:
        return stored_order(shards), np.arange(rows)
    cut = epoch if config.recut else 0
    return shuffled_order(shards, seed, cut, config.length), permutation(rows, seed, "rows", epoch)
