"""KV cache: keys and values of earlier tokens, all or a ring buffer of the latest, in full precision or int8.

A cache is written in place, so it is for decoding only. It has one position more than its capacity, for padding; it is
written and never read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor
from torch.nn import functional

from heddle.core import Config, part

CachedVectors = Float[Tensor, "batch heads place _"]
NewVectors = Float[Tensor, "batch heads new _"]

SLACK = 16  # tokens that a ring buffer keeps beyond its window, so that as many of the latest can be rewound


# --- how vectors are stored -------------------------------------------------------------------------------------------


class CacheStore(ABC):
    """Vectors by row, head and position in the cache."""

    @abstractmethod
    def map(self, function: Callable[[Tensor], Tensor]) -> "CacheStore":
        """Return the store with a function applied to every tensor."""

    @abstractmethod
    def write(self, new: NewVectors, positions: Int[Tensor, "batch new"]) -> None:
        """Write vectors at each row's own positions in the cache."""

    @abstractmethod
    def read(self) -> CachedVectors:
        """Return all vectors, without the position for padding."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Return how many vectors of a row it can hold."""

    def resize(self, size: int) -> "CacheStore":
        """Return the store with this size, and one position more for padding."""
        return self.map(lambda t: functional.pad(t, (0, 0, 0, size + 1 - t.shape[2])))


@dataclass(frozen=True)
class FullStore(CacheStore):
    """Vectors in full precision."""

    vectors: CachedVectors

    def map(self, function: Callable[[Tensor], Tensor]) -> "FullStore":
        return FullStore(function(self.vectors))

    def write(self, new: NewVectors, positions: Int[Tensor, "batch new"]) -> None:
        _write_at(self.vectors, new, positions)

    def read(self) -> CachedVectors:
        return self.vectors[:, :, :-1]

    @property
    def size(self) -> int:
        return self.vectors.shape[2] - 1


@dataclass(frozen=True)
class Int8Store(CacheStore):
    """Vectors quantized to int8, from -127 to 127, with a scale for each vector."""

    codes: Int8[Tensor, "batch heads place _"]
    scales: Float[Tensor, "batch heads place 1"]  # float32 or more: half precision would round them
    dtype: torch.dtype  # of the vectors read

    def map(self, function: Callable[[Tensor], Tensor]) -> "Int8Store":
        return Int8Store(function(self.codes), function(self.scales), self.dtype)

    def write(self, new: NewVectors, positions: Int[Tensor, "batch new"]) -> None:
        floats = new.to(self.scales.dtype)
        scales = (floats.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(floats.dtype).tiny)
        _write_at(self.codes, (floats / scales).round().clamp(-127, 127).to(torch.int8), positions)
        _write_at(self.scales, scales, positions)

    def read(self) -> CachedVectors:
        return (self.codes[:, :, :-1] * self.scales[:, :, :-1]).to(self.dtype)

    @property
    def size(self) -> int:
        return self.codes.shape[2] - 1


def _write_at(into: Tensor, new: Tensor, positions: Int[Tensor, "batch new"]) -> None:
    rows = torch.arange(len(positions), device=positions.device)[:, None]
    into[rows, :, positions] = new.transpose(1, 2)


class KVCacheConfig(Config, ABC):
    """How the KV cache stores its numbers."""

    @abstractmethod
    def allocate(self, like: NewVectors, size: int) -> CacheStore:
        """Allocate memory for `size` vectors in each row, shaped like `like`, and one more for padding."""


@part("full")
class FullKVCacheConfig(KVCacheConfig):
    """Full precision."""

    def allocate(self, like: NewVectors, size: int) -> CacheStore:
        batch, heads, _, width = like.shape
        return FullStore(like.new_zeros(batch, heads, size + 1, width))


@part("int8", was="quantised")
class Int8KVCacheConfig(KVCacheConfig):
    """KV cache quantization to int8, with a scale for each token and head.

    The error of a number is at most 1/254 of the largest in its vector, and its dtype's rounding: results are close to
    those of a full cache, not equal.
    """

    def allocate(self, like: NewVectors, size: int) -> CacheStore:
        batch, heads, _, width = like.shape
        codes = like.new_zeros(batch, heads, size + 1, width, dtype=torch.int8)
        floats = torch.promote_types(like.dtype, torch.float32)
        return Int8Store(codes, like.new_zeros(batch, heads, size + 1, 1, dtype=floats), like.dtype)


# --- which tokens are stored ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RingBuffer:
    """Ring buffer of the latest `size` tokens, a new one over the oldest, and the row's first `sinks`."""

    size: int
    sinks: int
    slack: int  # how many of `size` are beyond the window

    @classmethod
    def for_window(cls, window: int, sinks: int) -> "RingBuffer":
        """Return the ring for a sliding window, which includes the query itself, and attention sinks."""
        return cls(window + SLACK, sinks, SLACK)

    def cache_size(self, capacity: int) -> int:
        """Return the size that rows of up to `capacity` tokens need."""
        return min(capacity, self.sinks + self.size)

    def at(self, steps: Int[Tensor, "batch new"]) -> Int[Tensor, "batch new"]:
        """Return the position in the cache of the token at each step of a row."""
        return steps.where(steps < self.sinks, self.sinks + (steps - self.sinks) % self.size)

    def steps(self, lengths: Int[Tensor, " batch"], size: int) -> Int[Tensor, "batch place"]:
        """Return the step of the token at each position of the cache, by row lengths; below 0 where there is none.

        After a rewind, a place may hold a rewound token where this names an older one. As long as no more tokens than
        the slack were rewound, the older one is outside every later window.
        """
        place = torch.arange(size, device=lengths.device)
        last, offset = lengths[:, None] - 1 - self.sinks, place - self.sinks
        latest = last - (last - offset) % self.size
        first = place.where(place < lengths[:, None], -1)
        return first.where(place < self.sinks, latest.where(latest < 0, latest + self.sinks))


@dataclass(frozen=True)
class KVCache:
    """The KV cache of one attention: what it stores of each token, of all tokens or of those in a ring buffer."""

    stores: tuple[CacheStore, ...]
    ring: RingBuffer | None = None

    @classmethod
    def allocate(
        cls, new: tuple[NewVectors, ...], capacity: int, ring: RingBuffer | None, config: KVCacheConfig
    ) -> "KVCache":
        """Allocate a cache for rows of up to `capacity` tokens, with vectors shaped like the new ones."""
        size = capacity if ring is None else ring.cache_size(capacity)
        return cls(tuple(config.allocate(tensor, size) for tensor in new), ring)

    def map(self, function: Callable[[Tensor], Tensor]) -> "KVCache":
        """Return the slot with a function applied to every tensor."""
        return KVCache(tuple(store.map(function) for store in self.stores), self.ring)

    def resize(self, capacity: int) -> "KVCache":
        """Return the slot with capacity for rows of this length."""
        size = capacity if self.ring is None else self.ring.cache_size(capacity)
        return KVCache(tuple(store.resize(size) for store in self.stores), self.ring)

    def can_rewind(self, tokens: int) -> bool:
        """Tell whether this many of the latest tokens can be removed, to be overwritten by the next ones."""
        return self.ring is None or tokens <= self.ring.slack

    def write(
        self, new: tuple[NewVectors, ...], steps: Int[Tensor, "#batch new"], keep: Bool[Tensor, "batch new"] | None
    ) -> None:
        """Write the vectors of new tokens at each row's own steps; those not to keep go to the position for padding."""
        positions = (steps if self.ring is None else self.ring.at(steps)).expand(len(new[0]), -1)
        positions = positions if keep is None else positions.where(keep, self.size)
        for store, tensor in zip(self.stores, new, strict=True):
            store.write(tensor, positions)

    @property
    def size(self) -> int:
        """Return how many tokens of a row it can hold."""
        return self.stores[0].size

    def read(self) -> tuple[CachedVectors, ...]:
        """Return all stored vectors."""
        return tuple(store.read() for store in self.stores)
