"""Caches: what attention keeps of the tokens seen so far: of all or of the nearest, as it is or in eight bits.

A cache is written in place, so it is for decoding only. There is one place more than it keeps tokens: the bin for
padding, which no query ever meets.
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

SLACK = 16  # tokens that a ring keeps beyond its window, so that so many of the latest may be taken back


# --- how numbers are kept ---------------------------------------------------------------------------------------------


class CacheStore(ABC):
    """Vectors by row, head and place."""

    @abstractmethod
    def map(self, function: Callable[[Tensor], Tensor]) -> "CacheStore":
        """Return the store with every tensor changed."""

    @abstractmethod
    def write(self, new: NewVectors, places: Int[Tensor, "batch new"]) -> None:
        """Put vectors at each row's own places."""

    @abstractmethod
    def read(self) -> CachedVectors:
        """Return all that is kept, without the bin."""

    @property
    @abstractmethod
    def places(self) -> int:
        """Return how many vectors a row may keep."""

    def resize(self, places: int) -> "CacheStore":
        """Return the store with so many places, and the bin."""
        return self.map(lambda t: functional.pad(t, (0, 0, 0, places + 1 - t.shape[2])))


@dataclass(frozen=True)
class FullStore(CacheStore):
    """Vectors as they are."""

    vectors: CachedVectors

    def map(self, function: Callable[[Tensor], Tensor]) -> "FullStore":
        return FullStore(function(self.vectors))

    def write(self, new: NewVectors, places: Int[Tensor, "batch new"]) -> None:
        _write_at(self.vectors, new, places)

    def read(self) -> CachedVectors:
        return self.vectors[:, :, :-1]

    @property
    def places(self) -> int:
        return self.vectors.shape[2] - 1


@dataclass(frozen=True)
class Int8Store(CacheStore):
    """Vectors as whole numbers from -127 to 127, times a scale for each vector."""

    codes: Int8[Tensor, "batch heads place _"]
    scales: Float[Tensor, "batch heads place 1"]  # at least float32: halves would round them
    dtype: torch.dtype  # of what is read

    def map(self, function: Callable[[Tensor], Tensor]) -> "Int8Store":
        return Int8Store(function(self.codes), function(self.scales), self.dtype)

    def write(self, new: NewVectors, places: Int[Tensor, "batch new"]) -> None:
        floats = new.to(self.scales.dtype)
        scales = (floats.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(floats.dtype).tiny)
        _write_at(self.codes, (floats / scales).round().clamp(-127, 127).to(torch.int8), places)
        _write_at(self.scales, scales, places)

    def read(self) -> CachedVectors:
        return (self.codes[:, :, :-1] * self.scales[:, :, :-1]).to(self.dtype)

    @property
    def places(self) -> int:
        return self.codes.shape[2] - 1


def _write_at(into: Tensor, new: Tensor, places: Int[Tensor, "batch new"]) -> None:
    rows = torch.arange(len(places), device=places.device)[:, None]
    into[rows, :, places] = new.transpose(1, 2)


class KVCacheConfig(Config, ABC):
    """How caches keep their numbers."""

    @abstractmethod
    def allocate(self, like: NewVectors, places: int) -> CacheStore:
        """Make room for so many vectors a row, and the bin, shaped as `like` but for their number."""


@part("full")
class FullKVCacheConfig(KVCacheConfig):
    """Keep numbers as they are."""

    def allocate(self, like: NewVectors, places: int) -> CacheStore:
        batch, heads, _, width = like.shape
        return FullStore(like.new_zeros(batch, heads, places + 1, width))


@part("quantised")
class Int8KVCacheConfig(KVCacheConfig):
    """Keep numbers in eight bits, with a scale for each token and head.

    A number comes back within 1/254 of the largest of its vector, and its dtype's rounding: results are near those of
    a full cache, not equal.
    """

    def allocate(self, like: NewVectors, places: int) -> CacheStore:
        batch, heads, _, width = like.shape
        codes = like.new_zeros(batch, heads, places + 1, width, dtype=torch.int8)
        floats = torch.promote_types(like.dtype, torch.float32)
        return Int8Store(codes, like.new_zeros(batch, heads, places + 1, 1, dtype=floats), like.dtype)


# --- which tokens are kept --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RingBuffer:
    """Keep the latest `size` tokens, each new one in the place of the oldest, and the row's first `sinks`."""

    size: int
    sinks: int
    slack: int  # how many of `size` no window needs

    @classmethod
    def for_window(cls, window: int, sinks: int) -> "RingBuffer":
        """Return the ring for queries that see a window of tokens, themselves included, and the first few."""
        return cls(window + SLACK, sinks, SLACK)

    def places(self, capacity: int) -> int:
        """Return how many places rows need that may reach a length."""
        return min(capacity, self.sinks + self.size)

    def at(self, steps: Int[Tensor, "batch new"]) -> Int[Tensor, "batch new"]:
        """Return the place of the token at each step of a row."""
        return steps.where(steps < self.sinks, self.sinks + (steps - self.sinks) % self.size)

    def steps(self, lengths: Int[Tensor, " batch"], places: int) -> Int[Tensor, "batch place"]:
        """Return the step of the token at each place in rows of some lengths, below 0 where there is none.

        A token that was taken back may have stood where this says an older one does; as long as no more than the slack
        were taken back, the older one is out of every window that is still to come.
        """
        place = torch.arange(places, device=lengths.device)
        last, turn = lengths[:, None] - 1 - self.sinks, place - self.sinks
        latest = last - (last - turn) % self.size
        first = place.where(place < lengths[:, None], -1)
        return first.where(place < self.sinks, latest.where(latest < 0, latest + self.sinks))


@dataclass(frozen=True)
class KVCache:
    """What attention keeps of each token (keys and values, say), of all tokens or of those in a ring."""

    stores: tuple[CacheStore, ...]
    ring: RingBuffer | None = None

    @classmethod
    def allocate(
        cls, new: tuple[NewVectors, ...], capacity: int, ring: RingBuffer | None, config: KVCacheConfig
    ) -> "KVCache":
        """Make room for rows that may reach a length, shaped as what is new but for its number."""
        places = capacity if ring is None else ring.places(capacity)
        return cls(tuple(config.allocate(tensor, places) for tensor in new), ring)

    def map(self, function: Callable[[Tensor], Tensor]) -> "KVCache":
        """Return the slot with every tensor changed."""
        return KVCache(tuple(store.map(function) for store in self.stores), self.ring)

    def resize(self, capacity: int) -> "KVCache":
        """Return the slot with room for rows of this length."""
        places = capacity if self.ring is None else self.ring.places(capacity)
        return KVCache(tuple(store.resize(places) for store in self.stores), self.ring)

    def can_rewind(self, tokens: int) -> bool:
        """Tell whether so many of the latest tokens can be taken back: what comes next is written over them."""
        return self.ring is None or tokens <= self.ring.slack

    def write(
        self, new: tuple[NewVectors, ...], steps: Int[Tensor, "#batch new"], keep: Bool[Tensor, "batch new"] | None
    ) -> None:
        """Put what new tokens leave at each row's own steps; what is not to be kept goes to the bin."""
        places = (steps if self.ring is None else self.ring.at(steps)).expand(len(new[0]), -1)
        places = places if keep is None else places.where(keep, self.places)
        for store, tensor in zip(self.stores, new, strict=True):
            store.write(tensor, places)

    @property
    def places(self) -> int:
        """Return how many tokens of a row are kept at most."""
        return self.stores[0].places

    def read(self) -> tuple[CachedVectors, ...]:
        """Return all that is kept."""
        return tuple(store.read() for store in self.stores)
