"""Nearest neighbours of hidden states among the keys of a datastore: exact, block by block, in torch.

A search proposes candidates by float32 products, a few more than wanted; their squared distances are then computed
again, one by one and in float64, so that the answer does not depend on the other queries nor on the size of a block.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

QUERIES = 1 << 10  # searched at once
SCORES = 1 << 25  # distances held at once
NUMBERS = 1 << 24  # numbers of keys held at once
SLACK = 16  # candidates beyond those wanted, since their order is known up to rounding only
RESIDENT = 0.5  # share of a GPU's free memory that keys may take, to stay there

Queries = Float[Tensor, "queries width"]


class Neighbours(NamedTuple):
    """The nearest entries of each query, nearest first, ties by their order; an entry of -1: there is none."""

    distances: Float[Tensor, "queries k"]  # squared, float64; inf where there is no entry
    entries: Int[Tensor, "queries k"]


class NeighbourSearch(ABC):
    """A search for the nearest keys; subclasses propose candidates."""

    def __init__(self, keys: NDArray[Any], device: torch.device) -> None:
        self.keys, self.device = keys, device
        self.resident = _resident(keys, device)

    @abstractmethod
    def candidates(self, queries: Queries, count: int) -> Int[Tensor, "queries count"]:
        """Return entries near each query, at least those that are nearest, in any order; -1: none."""

    @final
    def nearest(self, queries: Queries, k: int) -> Neighbours:
        """Return the `k` nearest entries of each query, or all where there are fewer."""
        k = min(k, len(self.keys))
        if not len(queries):
            empty = torch.empty(0, k, device=self.device)
            return Neighbours(empty.double(), empty.long())
        found = [self._nearest(some, k) for some in queries.detach().to(self.device, torch.float32).split(QUERIES)]
        return Neighbours(torch.cat([each.distances for each in found]), torch.cat([each.entries for each in found]))

    def _nearest(self, queries: Queries, k: int) -> Neighbours:
        entries = self.candidates(queries, min(k + SLACK, len(self.keys))).sort(-1).values
        rows = max(1, NUMBERS // (entries.shape[1] * self.keys.shape[1]))
        pairs = zip(queries.split(rows), entries.split(rows), strict=True)
        distances = torch.cat([self._distances(*pair) for pair in pairs])
        order = distances.sort(dim=-1, stable=True)
        return Neighbours(order.values[:, :k], entries.gather(-1, order.indices)[:, :k])

    def _distances(self, queries: Queries, entries: Int[Tensor, "queries count"]) -> Float[Tensor, "queries count"]:
        """Return the squared distance of each query to its candidates."""
        keys = self.keys_at(entries.clamp(min=0)).double()
        distances = (queries.double()[:, None] - keys).square().sum(-1)
        return distances.masked_fill(entries < 0, torch.inf)

    def keys_at(self, entries: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape width"]:
        """Return the keys of some entries."""
        if self.resident is not None:
            return self.resident[entries]
        return torch.from_numpy(self.keys[entries.cpu().numpy()]).to(self.device)

    def block(self, start: int, stop: int) -> Float[Tensor, "block width"]:
        """Return consecutive keys in float32."""
        if self.resident is not None:
            return self.resident[start:stop].float()
        return torch.from_numpy(np.asarray(self.keys[start:stop])).to(self.device).float()


def _resident(keys: NDArray[Any], device: torch.device) -> Tensor | None:
    """Return all keys in a GPU's memory, where they fit; None: they are read from the disk's cache."""
    if device.type != "cuda" or keys.nbytes > RESIDENT * torch.cuda.mem_get_info(device)[0]:
        return None
    return torch.from_numpy(np.asarray(keys)).to(device)


class ExactSearch(NeighbourSearch):
    """Exact search: every key is compared, a block at a time."""

    norms: Float[Tensor, " entries"] | None = None  # squared lengths of all keys, known after the first search

    def candidates(self, queries: Queries, count: int) -> Int[Tensor, "queries count"]:
        entries, width = self.keys.shape
        size = max(1, min(SCORES // len(queries), NUMBERS // width))
        best, at = queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.long)
        norms: list[Tensor] | None = [] if self.norms is None else None
        for start in range(0, entries, size):
            keys = self.block(start, start + size)
            if norms is None:
                assert self.norms is not None
                lengths = self.norms[start : start + size]
            else:
                lengths = keys.square().sum(-1)
                norms.append(lengths)
            scores = torch.addmm(lengths, queries, keys.T, alpha=-2)  # the squared distance less the query's own length
            found = scores.topk(min(count, scores.shape[1]), largest=False)
            merged = torch.cat((best, found.values), 1)
            best, kept = merged.topk(min(count, merged.shape[1]), largest=False)
            at = torch.cat((at, found.indices + start), 1).gather(1, kept)
        if norms is not None:
            self.norms = torch.cat(norms)
        return at
