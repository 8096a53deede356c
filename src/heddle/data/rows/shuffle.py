"""Order: which token follows which in an epoch, as a pure function of the data, a seed and the epoch.

A stored document is s = [t1 .. tn, end]; its training pairs are inputs [end, t1 .. tn] and targets s. So each stored
token is a target exactly once, the first is predicted from `end`, and nothing crosses a boundary. An epoch's stream
lays the pairs of all documents end to end; because documents close with `end` and begin after it, each input in the
stream is the target before it.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from heddle.core import Purpose, numpy_generator
from heddle.data.rows.batch import Row
from heddle.data.shards import Shards

Boundaries = Literal["reset", "stream"]
T = TypeVar("T")


def random_bits(count: int, seed: int, *where: int | str) -> NDArray[np.uint64]:
    """Draw 64 random bits for each of `count` things; the raw stream, which no library version changes."""
    bits = numpy_generator(seed, Purpose.DATA, *where).bit_generator.random_raw(count)
    return np.asarray(bits, np.uint64)


def permutation(count: int, seed: int, *where: int | str) -> NDArray[np.int64]:
    """Shuffle 0 .. count-1 by a key."""
    return np.argsort(random_bits(count, seed, *where), kind="stable").astype(np.int64, copy=False)


class EpochCache(Generic[T]):
    """Remember the two latest values of a function of the epoch: threads at an epoch's edge need both sides."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._kept: dict[int, T] = {}
        self._lock = threading.Lock()

    def __call__(self, epoch: int) -> T:
        with self._lock:
            if epoch not in self._kept:
                made = self._make(epoch)
                while len(self._kept) > 1:
                    del self._kept[next(iter(self._kept))]
                self._kept[epoch] = made
            return self._kept[epoch]


@dataclass(frozen=True)
class TokenStream:
    """The pairs of one epoch: pieces of documents, laid end to end."""

    shards: Shards
    begins: NDArray[np.int64]  # where each piece begins in the shards
    edges: NDArray[np.int64]  # where each piece begins in the stream, and where the last one ends

    def take(self, start: int, stop: int, out: NDArray[Any], weights: NDArray[np.float32]) -> NDArray[np.int64]:
        """Write the pairs start .. stop as tokens, one more than the pairs, and what counts; return the pieces' sizes.

        Where marks tell what counts, the pair that leads into a document is a piece of its own.
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
        return sizes if self.shards.marks is None else split_off_openings(sizes, self.shards.opens(begins))

    def starts_document(self, place: int) -> bool:
        """Tell whether a document, or a piece of one, begins at this pair."""
        return int(self.edges[self.edges.searchsorted(place)]) == place


def split_off_openings(sizes: NDArray[np.int64], opens: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Split off the first pair of each piece that opens a document.

    A conversation begins with what its template writes first, not with the end of another: what the model is to read
    of it opens with that token, as when it answers, so the pair before must be no part of it.
    """
    parts = np.stack([opens.astype(np.int64), sizes - opens], axis=1).ravel()
    return parts[parts > 0]


def stored_order(shards: Shards) -> TokenStream:
    """Lay out the documents as they are stored."""
    edges = np.concatenate([[0], shards.ends])
    return TokenStream(shards, edges[:-1], edges)


def shuffled_order(shards: Shards, seed: int, epoch: int, length: int) -> TokenStream:
    """Lay out the documents in an order of the epoch's own.

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


# --- rows of a stream -------------------------------------------------------------------------------------------------


def _document_ids(sizes: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number a row's documents and the places in each; what the sizes leave over is padding, one more document."""
    used = int(sizes.sum())
    if used < length:
        sizes = np.append(sizes, length - used)
    starts = np.cumsum(sizes) - sizes
    return np.repeat(np.arange(len(sizes)), sizes), np.arange(length) - np.repeat(starts, sizes)


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


def with_begin_token(tokens: NDArray[Any], starts: NDArray[np.int64], shards: Shards) -> NDArray[Any] | None:
    """Return what a model reads of a row whose documents open with an id of their own; None: all that is stored.

    What is stored before a document is the end of another. A piece that goes on with a document is left as it is.
    """
    if shards.begin == shards.end:
        return None
    inputs = tokens[:-1].copy()
    inputs[starts[inputs[starts] == shards.end]] = shards.begin
    return inputs
