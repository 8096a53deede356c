"""State: what a model keeps between steps: the KV cache and hidden states, under one protocol."""

from heddle.nn.state.kv_cache import Cache, CacheConfig, FullCacheConfig, New, QuantisedCacheConfig, Ring
from heddle.nn.state.state import Hidden, Memory, Recalled, Slot, State

__all__ = [
    "Cache",
    "CacheConfig",
    "FullCacheConfig",
    "Hidden",
    "Memory",
    "New",
    "QuantisedCacheConfig",
    "Recalled",
    "Ring",
    "Slot",
    "State",
]
