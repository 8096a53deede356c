"""State: the KV cache and recurrent hidden states that decoding carries between steps."""

from heddle.nn.state.kv_cache import (
    FullKVCacheConfig,
    Int8KVCacheConfig,
    KVCache,
    KVCacheConfig,
    NewVectors,
    RingBuffer,
)
from heddle.nn.state.state import CrossKVCache, HiddenState, Memory, Slot, State
from heddle.nn.state.static_rows import (
    StatePiece,
    TokenAxes,
    allocate_rows,
    summaries,
    view_rows,
    write_pieces,
    write_row,
)
