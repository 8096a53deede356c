"""Runtime: what a model can take, prefill, the prefix cache, and steps captured as CUDA graphs."""

from heddle.decoding.runtime.clock import Deadline
from heddle.decoding.runtime.cuda_graphs import (
    CapturedGraph,
    CaptureMode,
    StaticState,
    acquire,
    bucketed_capacity,
    capture_mode,
    release,
)
from heddle.decoding.runtime.hidden_states import read_all
from heddle.decoding.runtime.limits import (
    check_prompt,
    check_source,
    decodes_with_kv_cache,
    device_of,
    eval_mode,
    fits_context,
    has_kv_cache,
    pad_rows,
)
from heddle.decoding.runtime.prefill import (
    FinishReason,
    Prefill,
    Prompt,
    Request,
    make_requests,
    prepare_prefill,
    with_capacity,
)
from heddle.decoding.runtime.prefix_cache import PrefixCache
