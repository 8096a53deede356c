"""Attention under masks on one GPU, forward and backward, each form compiled: the sight alone, documents, windows.

`python benchmarks/attention_masks.py` prints a table, with how far each form is from the matrix of booleans.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from entry_point import run_main
from results import record
from torch import Tensor
from worker_processes import Measure, measured

from heddle.nn.attention import AttentionInputs, DotScoreConfig
from heddle.nn.attention.flex_attention import FlexMask, flex_attend
from heddle.nn.attention.sliding_window import SlidingWindow, sliding_window_attend
from heddle.nn.base import Context
from heddle.nn.layers import SlidingWindowConfig, base_mask, document_positions, key_distances

SHAPES = {"64x1024, 12 heads of 64": (64, 1024, 12, 12, 64), "16x2048, 32/8 heads of 64": (16, 2048, 32, 8, 64)}
WINDOW = 256
APART = 0.02  # from the matrix, in half precision
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def dense(query: Tensor, key: Tensor, value: Tensor, documents: Tensor | None, window: int | None) -> Tensor:
    """Attend by a matrix of booleans."""
    ctx, length = Context(documents=documents), query.shape[2]
    allowed = base_mask(ctx, length, "past", query.device)
    if window is not None:
        if allowed is None:
            allowed = torch.ones(1, 1, length, length, dtype=torch.bool, device=query.device).tril()
        distance = key_distances(ctx, length, length, query.device)
        allowed = SlidingWindowConfig(size=window).restrict(
            allowed, distance, document_positions(ctx, length, query.device)
        )
    return attend(AttentionInputs(query, key, value, allowed))


def attend(inputs: AttentionInputs) -> Tensor:
    """Attend as the part does."""
    return DotScoreConfig().build(inputs.query.shape[1], inputs.query.shape[3]).attend(inputs)


def varlen(query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Tensor:
    """Attend to documents laid end to end, by torch's kernel for rows of unlike length; 16 a row at most."""
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, length, width = query.shape
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    places = torch.arange(batch * length, device=query.device)
    capacity = batch * 16
    starts = torch.where(begins.flatten(), places, batch * length).sort().values[:capacity]
    ends = torch.cat((starts, starts.new_full((1,), batch * length))).int()
    q, k, v = (t.transpose(1, 2).reshape(batch * length, -1, width) for t in (query, key, value))
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    mixed = varlen_attn(q, k, v, ends, ends, length, length, window_size=(-1, 0))
    assert isinstance(mixed, Tensor)
    return mixed.view(batch, length, heads, width).transpose(1, 2)


FORMS: dict[str, Attend] = {
    "sight": lambda q, k, v, d: attend(AttentionInputs(q, k, v, causal=True)),
    "documents, matrix": lambda q, k, v, d: dense(q, k, v, d, None),
    "documents, blocks": lambda q, k, v, d: flex_attend(q, k, v, FlexMask("past", d), q.shape[-1] ** -0.5),
    "documents, end to end": varlen,
    "window, near": lambda q, k, v, d: sliding_window_attend(
        q, k, v, SlidingWindow(WINDOW, "past"), q.shape[-1] ** -0.5
    ),
    "window, blocks": lambda q, k, v, d: attend(AttentionInputs(q, k, v, flex_mask=FlexMask("past", None, WINDOW))),
    "window of documents, blocks": lambda q, k, v, d: flex_attend(
        q, k, v, FlexMask("past", d, WINDOW), q.shape[-1] ** -0.5
    ),
}


def inputs(shape: tuple[int, ...], seed: int) -> tuple[list[Tensor], Tensor]:
    """Draw queries, keys and values, and documents of 100 to 500 tokens."""
    batch, length, heads, kv_heads, width = shape
    draw = torch.Generator("cuda").manual_seed(seed)
    made = [
        torch.randn(batch, length, count, width, generator=draw, device="cuda", dtype=torch.bfloat16)
        .transpose(1, 2)
        .requires_grad_()
        for count in (heads, kv_heads, kv_heads)
    ]
    ends = torch.randint(100, 500, (batch, length // 100 + 1), generator=draw, device="cuda").cumsum(1)
    places = torch.arange(length, device="cuda")
    return made, (places[None, :, None] >= ends[:, None]).sum(-1)


def gradients(attend: Attend, made: list[Tensor], documents: Tensor) -> list[Tensor]:
    """Go there and back."""
    query, key, value = made
    mixed = attend(query, key, value, documents)
    return [mixed, *torch.autograd.grad(mixed, made, torch.ones_like(mixed))]


def oracle(form: str) -> Attend:
    """Return the matrix that a form is held against."""
    window = WINDOW if form.startswith("window") else None
    return lambda q, k, v, d: dense(q, k, v, d if "documents" in form else None, window)


def prepare(job: tuple[str, str]) -> Measure:
    """Compile one form for one shape."""
    form, shape = job
    compiled = torch.compile(FORMS[form], fullgraph=True, dynamic=False)
    made, documents = inputs(SHAPES[shape], 0)
    found = gradients(compiled, made, documents)
    worst = 0.0
    if form != "sight":
        want = gradients(oracle(form), made, documents)
        worst = max(((a - b).float().norm() / b.float().norm()).item() for a, b in zip(found, want, strict=True))
    torch._dynamo.config.error_on_recompile = True
    made, documents = inputs(SHAPES[shape], 1)
    gradients(compiled, made, documents)
    return lambda: {"ms": timed(lambda: gradients(compiled, made, documents)), "apart": round(worst, 5)}


def timed(act: Callable[[], Any], rounds: int = 20) -> float:
    """Return the median time in milliseconds."""
    spans: list[float] = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        act()
        end.record()
        end.synchronize()
        spans.append(start.elapsed_time(end))
    return round(statistics.median(spans), 3)


def main() -> None:
    """Measure all forms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    words = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a GPU")
    jobs = [(form, shape) for shape in words.only for form in FORMS]
    wrong = []
    for found in measured(jobs, prepare, workers=14):
        form, shape = found.pop("job")
        wrong += [form] if found.get("apart", 1.0) > APART else []
        print(f"{shape:26} {form:28} {found}", flush=True)
        if "error" not in found:
            record(f"attention, {form}, {shape}", **found)
    if wrong:
        raise SystemExit(f"not what the matrix gives: {', '.join(wrong)}")


if __name__ == "__main__":
    run_main(main)
