"""Prefixes: states after beginnings that were read before, so that requests which share one read it once.

A state with a cache of every token serves any beginning of what it has read. One with hidden vectors, or with a cache
of a window, serves what it has read as a whole (a window gives back a few tokens). What a model remembers of a target
depends on its source, so beginnings are kept apart by source.
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import ConfigError
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import FullKVCacheConfig, KVCacheConfig, State

Ids = NDArray[np.int64]

BUDGET = 1 << 28  # bytes
SHORTEST = 4  # tokens; beginnings that are shorter are read faster than they are found and copied


@dataclass(frozen=True)
class PrefixMatch:
    """A state of one row that has read so many of some ids; it belongs to the store, and must not be gone on from."""

    state: State
    length: int


@dataclass(frozen=True)
class _Kept:
    """What was read, and the state after it."""

    ids: Ids
    state: State
    size: int  # bytes

    def serves(self, ids: Ids) -> int:
        """Return how many of some ids this state can stand for."""
        common = _common(self.ids, ids)
        return common if self.state.can_rewind(len(self.ids) - common) else 0


Place = tuple[tuple[int, ...] | None, KVCacheConfig]  # what a beginning depends on: its source, and how caches are kept
Name = tuple[Place, bytes]


@final
class PrefixCache:
    """A store of states of one model by what they have read; the least lately used go when the bytes run out.

    It knows nothing of training: after the weights change, `clear` it.
    """

    def __init__(self, model: AutoregressiveModel, budget: int = BUDGET) -> None:
        if budget < 1:
            raise ConfigError("budget", want="at least 1 byte", got=budget)
        self.model, self.budget = model, budget
        self.held = 0  # bytes
        self.reused = 0  # tokens that need not be read again, so far
        self._kept: OrderedDict[Name, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self.held = 0

    def find(
        self, ids: Sequence[int], source: Sequence[int] | None = None, cache: KVCacheConfig | None = None
    ) -> PrefixMatch | None:
        """Return the state after the longest known beginning of some ids; None: none is worth its copy."""
        wanted, place = np.asarray(ids, dtype=np.int64), _place(source, cache)
        served = [(kept.serves(wanted), name) for name, kept in self._kept.items() if name[0] == place]
        length, name = max(served, key=lambda found: found[0], default=(0, None))
        if name is None or length < SHORTEST:
            return None
        self._kept.move_to_end(name)
        state = self._kept[name].state
        return PrefixMatch(state.rewind(torch.full_like(state.lengths, length)), length)

    def keep(self, ids: Sequence[int], state: State, source: Sequence[int] | None = None, row: int = 0) -> None:
        """Remember a row of a state that has read exactly these ids; it is copied, and cut to what was read."""
        read = np.asarray(ids, dtype=np.int64)
        name = (_place(source, state.cache), read.tobytes())
        if len(read) < SHORTEST or name in self._kept:
            return
        own = state.select(torch.tensor([row], device=state.lengths.device)).resize(len(read))
        kept = _Kept(read, own, own.nbytes())
        if kept.size > self.budget:
            return
        for other in [n for n, k in self._kept.items() if n[0] == name[0] and kept.serves(k.ids) == len(k.ids)]:
            self._drop(other)  # the new one can do all that this one could
        self._kept[name] = kept
        self.held += kept.size
        while self.held > self.budget:
            self._drop(next(iter(self._kept)))

    def knows(
        self, ids: Sequence[int], source: Sequence[int] | None = None, cache: KVCacheConfig | None = None
    ) -> bool:
        """Tell whether all of some ids were read before."""
        found = self.find(ids, source, cache)
        return found is not None and found.length == len(ids)

    def _drop(self, name: Name) -> None:
        self.held -= self._kept.pop(name).size


def shared(rows: Sequence[tuple[Sequence[int], Sequence[int] | None]]) -> list[tuple[list[int], Sequence[int] | None]]:
    """Return the beginnings that several rows (ids and source) have in common, each once."""
    found: dict[tuple[tuple[int, ...] | None, tuple[int, ...]], None] = {}
    ordered = sorted(((None if source is None else tuple(source), tuple(ids)) for ids, source in rows), key=_order)
    for (source, ids), (other, more) in itertools.pairwise(ordered):
        common = _common(*(np.asarray(row[:-1], dtype=np.int64) for row in (ids, more)))  # the last is always read
        if source == other and common >= SHORTEST:
            found[source, ids[:common]] = None
    return [(list(ids), source) for source, ids in found]


def _order(row: tuple[tuple[int, ...] | None, tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return row[0] or (), row[1]


def _place(source: Sequence[int] | None, cache: KVCacheConfig | None) -> Place:
    return None if source is None else tuple(source), FullKVCacheConfig() if cache is None else cache


def _common(left: Ids, right: Ids) -> int:
    """Return how many ids two rows have in common from the first on."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
