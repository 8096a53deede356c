"""Streaming with attention sinks (StreamingLLM, Xiao et al. 2023): texts of any length in constant memory.

The KV cache holds the first `sinks` tokens of a text and the latest `window`. When it is full, the oldest eighth of the
window is dropped, and the tokens behind it move up: positions are places in the cache, as in the paper, and rotated
keys are rotated back by as many. When a row is full depends on its own length alone, so that batched equals alone, and
reading in pieces equals reading token by token.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from heddle.core import Config, ConfigError, Count, Positive, UsageError, settings
from heddle.core.shapes import Ids, Stream
from heddle.decoding.runtime.limits import has_kv_cache
from heddle.models.networks import AutoregressiveModel, LanguageModel, require
from heddle.nn.attention import Attention
from heddle.nn.base import Module, Stateful
from heddle.nn.positions import apply_rotary
from heddle.nn.stack import Branch
from heddle.nn.state import FullKVCacheConfig, HiddenState, KVCache, KVCacheConfig, Slot, State

StreamedPiece = tuple[int, Stream, State]  # where it begins, its vectors, the state after it
PART = 8  # of the window that is dropped at once


@settings
class StreamingConfig(Config):
    """What is kept of a text.

    window: latest tokens, at most; when there are so many, the oldest eighth is dropped.
    sinks: first tokens, which stay.
    """

    window: Positive
    sinks: Count = 4

    @property
    def capacity(self) -> int:
        """Return how many tokens are kept, at most."""
        return self.window + self.sinks

    @property
    def dropped(self) -> int:
        """Return how many tokens are dropped at once."""
        return max(1, self.window // PART)


class Streaming:
    """A model that reads with attention sinks and a window."""

    def __init__(self, model: AutoregressiveModel, config: StreamingConfig) -> None:
        require(model, LanguageModel, UsageError(f"sinks: want a language model, got {model.config.noun}"))
        self.model, self.config = model, config
        self.bounded = not has_kv_cache(model.decoder_tower)  # recurrent: constant memory as it is
        self.attention = {} if self.bounded else _attention_layers(model, config)

    def new_state(self, batch: int) -> State:
        """Return the state before the first token."""
        return self.model.new_state(batch, self.config.capacity)

    def read(
        self, ids: Ids, lengths: Int[Tensor, " batch"] | None, state: State
    ) -> Iterator[tuple[int, Stream, State]]:
        """Read rows of ids, of which the first `lengths` are real, into a new state.

        Yield for each piece where it begins, its vectors, and the state after it.
        """
        for start, stop in self._pieces(ids.shape[1]):
            piece = ids[:, start:stop]
            new = None if lengths is None else (lengths - start).clamp(0, stop - start)
            state = self.evict(state, None if new is None else new > 0)
            vectors, state = self.model.step(piece, state, lengths=new)
            yield start, vectors, state

    def _pieces(self, length: int) -> Iterator[tuple[int, int]]:
        """Yield pieces after which a row that goes on is full."""
        start, stop = 0, self.config.capacity
        while start < length:
            yield start, min(stop, length)
            start, stop = stop, stop + self.config.dropped

    def evict(self, state: State, reading: Bool[Tensor, " batch"] | None = None) -> State:
        """Return a state in which each row that reads on (None: all) has room for a token."""
        full = state.lengths >= self.config.capacity
        full = full if reading is None else full & reading
        if self.bounded or not bool(full.any()):
            return state
        drop = full * self.config.dropped
        slots = {key: self._shifted(key, slot, drop) for key, slot in state.slots.items()}
        return replace(state, slots=slots, lengths=state.lengths - drop)

    def _shifted(self, key: str, slot: Slot, drop: Int[Tensor, " batch"]) -> Slot:
        """Return a KV cache without the oldest tokens of its window; recurrent states stay."""
        if isinstance(slot, HiddenState):
            return slot
        if not isinstance(slot, KVCache):
            raise UsageError(f"sinks: want attention or recurrence in every layer, found a {type(slot).__name__}")
        place = torch.arange(slot.size + 1, device=drop.device)  # the last is for padding
        moved = (place >= self.config.sinks) & (place < slot.size)
        index = torch.where(moved, place + drop[:, None], place).clamp(max=slot.size)

        def gather(vectors: Tensor) -> Tensor:
            return vectors.gather(2, index[:, None, :, None].expand(-1, vectors.shape[1], -1, vectors.shape[3]))

        shifted = slot.map(gather)
        back = torch.where(moved, -drop[:, None], 0)
        attention = self.attention[max((path for path in self.attention if key.startswith(path)), key=len)]
        rotation = self.model.decoder_tower.position.shift(back, attention.mask.is_full, _dtype(shifted))
        if rotation is None:
            return shifted
        keys, *others = shifted.stores
        return replace(shifted, stores=(keys.map(lambda vectors: apply_rotary(vectors, rotation)), *others))


def _dtype(cache: KVCache) -> torch.dtype:
    return cache.stores[0].read().dtype


def _attention_layers(model: AutoregressiveModel, config: StreamingConfig) -> dict[str, Attention]:
    """Return the attention of each layer by its path; refuse a model whose cache cannot be shortened."""
    position = model.decoder_tower.position
    if not position.is_relative:
        want = "a model whose positions are distances (rotary, alibi, t5, relative) or none"
        raise ConfigError("sinks", want=want, got=f"{type(position).__name__}, which becomes part of what is cached")
    branches = [module for module in model.modules() if isinstance(module, Branch)]
    parts = {branch.path: branch.part for branch in branches if isinstance(branch.part, Stateful)}
    found = {path: part for path, part in parts.items() if isinstance(part, Attention)}
    known = {id(part) for part in found.values()}
    for module in model.modules():
        if isinstance(module, Module) and module.state_elements() and id(module) not in known:
            want = "plain attention or recurrence in every layer"
            raise ConfigError("sinks", want=want, got=type(module).__name__)
    for part in found.values():
        ring = part.mask.ring()
        if ring is not None and ring.cache_size(config.capacity) < config.capacity:
            most = ring.sinks + ring.size - config.sinks
            want = f"at most {most}, for the model has a sliding window of its own"
            raise ConfigError("window", want=want, got=config.window)
    return found


def check_cache(config: StreamingConfig | None, cache: KVCacheConfig) -> None:
    """Refuse a quantized cache, whose keys cannot be rotated back."""
    if config is not None and not isinstance(cache, FullKVCacheConfig):
        raise ConfigError("cache", want="full with sinks, since cached keys are rotated back", got=cache.kind)
