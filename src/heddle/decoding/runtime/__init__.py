"""Runtime: limits of a model, requests, prefill, the prefix cache, and steps captured as CUDA graphs."""

from heddle.decoding.runtime.cuda_graphs import (
    CapturedGraph,
    CaptureMode,
    Compile,
    StaticState,
    acquire,
    bucketed_capacity,
    capture_mode,
    release,
)
from heddle.decoding.runtime.limits import (
    check_prompt,
    check_source,
    decodes_with_kv_cache,
    device_of,
    eval_mode,
    fits_context,
    has_kv_cache,
    longest_row,
    pad_rows,
    pad_sources,
)
from heddle.decoding.runtime.prefill import Prefill, PrefillOptions, prepare_prefill, read_all, with_capacity
from heddle.decoding.runtime.prefix_cache import PrefixCache
from heddle.decoding.runtime.requests import Deadline, FinishReason, Prompt, Request, Source, make_requests
from heddle.decoding.runtime.streaming import Streaming, StreamingConfig, check_cache
