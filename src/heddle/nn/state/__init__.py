"""State: what a model keeps between steps: the KV cache and hidden states, under one protocol."""

from heddle.nn.state.kv_cache import (
    FullKVCacheConfig,
    Int8KVCacheConfig,
    KVCache,
    KVCacheConfig,
    NewVectors,
    RingBuffer,
)
from heddle.nn.state.state import CrossKVCache, HiddenState, Memory, Slot, State
