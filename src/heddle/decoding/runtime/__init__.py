"""Runtime: what a model can take, prefill, the prefix cache, and steps captured as CUDA graphs."""

from heddle.decoding.runtime.clock import Clock
from heddle.decoding.runtime.cuda_graphs import Act, Fixed, Kind, borrow, give_back, kind_for, room_of
from heddle.decoding.runtime.hidden_states import read_all
from heddle.decoding.runtime.limits import (
    at_rest,
    caches,
    device_of,
    fits,
    grows,
    padded,
    readable,
    readable_source,
    writer_of,
)
from heddle.decoding.runtime.prefill import Opening, Prompt, Reason, Request, opening, requests_of, with_room
from heddle.decoding.runtime.prefix_cache import Prefixes

__all__ = [
    "Act",
    "Clock",
    "Fixed",
    "Kind",
    "Opening",
    "Prefixes",
    "Prompt",
    "Reason",
    "Request",
    "at_rest",
    "borrow",
    "caches",
    "device_of",
    "fits",
    "give_back",
    "grows",
    "kind_for",
    "opening",
    "padded",
    "read_all",
    "readable",
    "readable_source",
    "requests_of",
    "room_of",
    "with_room",
    "writer_of",
]
