"""Runtime: what a model can take, prefill, the prefix cache, and steps captured as CUDA graphs."""

from heddle.decoding.runtime.clock import Clock
from heddle.decoding.runtime.cuda_graphs import Act, Fixed, Kind, acquire, capture_mode, release, room_of
from heddle.decoding.runtime.hidden_states import read_all
from heddle.decoding.runtime.limits import (
    caches,
    check_source,
    device_of,
    eval_mode,
    fits,
    grows,
    padded,
    readable,
    writer_of,
)
from heddle.decoding.runtime.prefill import Prefill, Prompt, Reason, Request, make_requests, opening, with_room
from heddle.decoding.runtime.prefix_cache import PrefixCache

__all__ = [
    "Act",
    "Clock",
    "Fixed",
    "Kind",
    "Prefill",
    "PrefixCache",
    "Prompt",
    "Reason",
    "Request",
    "acquire",
    "caches",
    "capture_mode",
    "check_source",
    "device_of",
    "eval_mode",
    "fits",
    "grows",
    "make_requests",
    "opening",
    "padded",
    "read_all",
    "readable",
    "release",
    "room_of",
    "with_room",
    "writer_of",
]
