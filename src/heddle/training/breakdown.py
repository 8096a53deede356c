"""Profile: the time of a step by kind of work, from the names that a profiler gives to kernels."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from heddle.training.loop import UPDATE

# The first kind one of whose words is in a kernel's name; what has none is a norm or another work element by element.
KINDS: dict[str, tuple[str, ...]] = {
    "attention": ("flash", "fmha", "sdpa", "attention"),
    "recurrence": ("rnn", "lstm", "gru", "run_rnn", "rnn_backward"),
    "head and loss": ("log_softmax", "nll", "cross_entropy", "logsumexp"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "gemv", "splitk", "aten::mm", "addmm", "bmm", "_mm"),
    "copies": ("memcpy", "memset", "aten::copy_", "direct_copy"),
}
REST, IDLE = "norms and elementwise", "idle"
VOCAB_MULTIPLE = 64  # to a multiple of it the loss rounds the vocabulary up on a GPU
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


def kind_of(name: str) -> str:
    """Return the kind of work that a kernel or an operator does."""
    lower = name.lower()
    return next((kind for kind, words in KINDS.items() if any(word in lower for word in words)), REST)


def breakdown(take: Callable[[], object], steps: int, device: torch.device, vocab: int | None) -> dict[str, float]:
    """Return the seconds of a step by kind of work, over some steps; time in which the device waits is idle.

    Products one of whose sides is the vocabulary are the head's.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints when it begins and ends
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds, record_shapes=True) as profiled:
        for _ in range(steps):
            take()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    found = _summed(list(profiled.events() or []), device.type == "cuda", vocab)
    return {kind: seconds / steps for kind, seconds in sorted(found.items(), key=lambda item: -item[1]) if seconds}


def _summed(events: list[Any], cuda: bool, vocab: int | None) -> dict[str, float]:
    """Return the seconds of each kind in all steps together."""
    here = [event for event in events if event.device_type.name == ("CUDA" if cuda else "CPU")]
    updates = [(e.time_range.start, e.time_range.end) for e in here if e.name == UPDATE]
    work = [e for e in here if e.name != UPDATE and not e.is_user_annotation]
    total = dict.fromkeys([*KINDS, REST, UPDATE], 0.0)
    for event in work:
        span = event.time_range.elapsed_us() if cuda else event.self_cpu_time_total
        inside = any(start <= event.time_range.start < end for start, end in updates)
        total[UPDATE if inside else kind_of(event.name)] += span / 1e6
    head = sum(_own(event, cuda) for event in events if _of_head(event, vocab)) / 1e6
    total["head and loss"] += head
    total["matrix products"] = max(0.0, total["matrix products"] - head)
    if cuda and work:
        whole = max(e.time_range.end for e in work) - min(e.time_range.start for e in work)
        total[IDLE] = max(0.0, whole / 1e6 - sum(total.values()))
    return total


def _own(event: Any, cuda: bool) -> float:
    return float(event.self_device_time_total if cuda else event.self_cpu_time_total)


def _of_head(event: Any, vocab: int | None) -> bool:
    """Tell whether an operator is a product one of whose sides is the vocabulary, or that rounded up to be even."""
    if vocab is None or event.device_type.name != "CPU" or event.name not in PRODUCTS:
        return False
    sides = {vocab, -(-vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE}
    return any(sides.intersection(shape) for shape in event.input_shapes if isinstance(shape, list))
