"""Prefix cache: states after prompt prefixes that were read before, so that requests share their common prefix.

A state with a full KV cache serves any prefix of what it has read. A recurrent state, or the KV cache of a sliding
window, serves only the whole of it (a window can be rewound by a few tokens). The state of a decoder depends on the
source, so entries are kept apart by source.
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
from heddle.decoding.runtime.limits import check_prompt, device_of, eval_mode
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import FullKVCacheConfig, KVCacheConfig, State

Ids = NDArray[np.int64]

BUDGET = 1 << 28  # bytes
MIN_TOKENS = 4  # tokens; shorter prefixes are faster to read than to find and copy


@dataclass(frozen=True)
class PrefixMatch:
    """The state of one row after the first `length` ids. It belongs to the cache: copy it before stepping."""

    state: State
    length: int


@dataclass(frozen=True)
class _Entry:
    """The ids that were read, and the state after them."""

    ids: Ids
    state: State
    size: int  # bytes

    def serves(self, ids: Ids) -> int:
        """Return how many of the first ids this state can be rewound to."""
        common = _common_length(self.ids, ids)
        return common if self.state.can_rewind(len(self.ids) - common) else 0


_Scope = tuple[tuple[int, ...] | None, KVCacheConfig]  # what a state depends on besides the ids: source, kind of cache
_Key = tuple[_Scope, bytes]


@final
class PrefixCache:
    """States of one model by the ids they have read; beyond a budget of bytes the least recently used are dropped.

    Call `clear` after the weights change.
    """

    def __init__(self, model: AutoregressiveModel, budget: int = BUDGET) -> None:
        if budget < 1:
            raise ConfigError("budget", want="at least 1 byte", got=budget)
        self.model, self.budget = model, budget
        self.used_bytes = 0
        self.reused_tokens = 0  # so far
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self.used_bytes = 0

    def find(
        self, ids: Sequence[int], source: Sequence[int] | None = None, cache: KVCacheConfig | None = None
    ) -> PrefixMatch | None:
        """Return the state after the longest cached prefix of some ids; None: none is worth copying."""
        wanted, scope = np.asarray(ids, dtype=np.int64), _scope(source, cache)
        served = [(entry.serves(wanted), key) for key, entry in self._entries.items() if key[0] == scope]
        length, key = max(served, key=lambda found: found[0], default=(0, None))
        if key is None or length < MIN_TOKENS:
            return None
        self._entries.move_to_end(key)
        state = self._entries[key].state
        return PrefixMatch(state.rewind(torch.full_like(state.lengths, length)), length)

    def store(self, ids: Sequence[int], state: State, source: Sequence[int] | None = None, row: int = 0) -> None:
        """Store a copy of one row of a state that has read exactly these ids."""
        read = np.asarray(ids, dtype=np.int64)
        key = (_scope(source, state.cache), read.tobytes())
        if len(read) < MIN_TOKENS or key in self._entries:
            return
        own = state.select(torch.tensor([row], device=state.lengths.device)).resize(len(read))
        entry = _Entry(read, own, own.nbytes())
        if entry.size > self.budget:
            return
        for other in [k for k, e in self._entries.items() if k[0] == key[0] and entry.serves(e.ids) == len(e.ids)]:
            self._drop(other)  # the new entry serves all that this one could
        self._entries[key] = entry
        self.used_bytes += entry.size
        while self.used_bytes > self.budget:
            self._drop(next(iter(self._entries)))

    @torch.inference_mode()
    def read(self, ids: Sequence[int]) -> None:
        """Read ids that many prompts of a decoder begin with, and store the state after them."""
        if len(ids) < MIN_TOKENS or self.contains(ids):
            return
        with eval_mode(self.model):
            state = self.model.new_state(1, len(ids))
            row = torch.tensor([list(check_prompt(self.model, ids))], device=device_of(self.model))
            self.store(ids, self.model.step(row, state)[1])

    def contains(
        self, ids: Sequence[int], source: Sequence[int] | None = None, cache: KVCacheConfig | None = None
    ) -> bool:
        """Tell whether a state after all of these ids is cached."""
        found = self.find(ids, source, cache)
        return found is not None and found.length == len(ids)

    def _drop(self, key: _Key) -> None:
        self.used_bytes -= self._entries.pop(key).size


def common_prefixes(
    rows: Sequence[tuple[Sequence[int], Sequence[int] | None]],
) -> list[tuple[list[int], Sequence[int] | None]]:
    """Return the prefixes that several rows (ids and source) share, each once."""
    found: dict[tuple[tuple[int, ...] | None, tuple[int, ...]], None] = {}
    ordered = sorted(((None if source is None else tuple(source), tuple(ids)) for ids, source in rows), key=_sort_key)
    for (source, ids), (other, more) in itertools.pairwise(ordered):
        most = (np.asarray(row[:-1], dtype=np.int64) for row in (ids, more))  # the last token is always read
        common = _common_length(*most)
        if source == other and common >= MIN_TOKENS:
            found[source, ids[:common]] = None
    return [(list(ids), source) for source, ids in found]


def _sort_key(row: tuple[tuple[int, ...] | None, tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return row[0] or (), row[1]


def _scope(source: Sequence[int] | None, cache: KVCacheConfig | None) -> _Scope:
    return None if source is None else tuple(source), FullKVCacheConfig() if cache is None else cache


def _common_length(left: Ids, right: Ids) -> int:
    """Return the length of the longest common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
