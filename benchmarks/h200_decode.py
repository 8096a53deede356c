"""Decoding on one GPU beside plain PyTorch and Hugging Face `transformers`, all compiled, in one run: tokens/s.

`python benchmarks/h200_decode.py` measures a Llama shape of 1.04 B parameters in bfloat16, from a prompt of 512 tokens
to a context of 1,024, greedy; `--batches 1 64` some batches, `--peers plain` some peers, `--check` whether the ids of
compiled steps are those of plain ones in float32, `--kernels` where the time of a step goes, `--prefill` the reading of
prompts, `--weights int8 int4` the same with packed matrices (what that costs in quality, `decode_cpu.py` tells of real
weights). `--tiny` runs anywhere in seconds and measures nothing of worth.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from entry_point import positive, run_main
from results import need_gpu, record
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core.system import choose_hardware, peak_flops
from heddle.decoding.generation import GenerationConfig, generate
from heddle.decoding.generation.decoders import StaticStep
from heddle.decoding.runtime import cuda_graphs
from heddle.models import forward_flops
from heddle.models.networks import LanguageModel
from heddle.models.presets import build
from heddle.nn.kernels import dispatch as kernels
from heddle.nn.quantization import Bits, quantize_model

BARS = {1: 1_150, 64: 40_000}  # tokens/s
ENOUGH = 128  # tokens for a slow peer
BANDWIDTH = 4.24e12  # bytes/s of a device copy on one H200


@dataclass(frozen=True)
class Shape:
    """A model, and how far its rows go."""

    layers: int = 16
    width: int = 2048
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 8192
    vocab: int = 32_000
    prompt: int = 512
    new: int = 512

    @property
    def context(self) -> int:
        """Return the most tokens of a row."""
        return self.prompt + self.new


TINY = Shape(layers=2, width=32, heads=4, kv_heads=2, hidden=64, vocab=64, prompt=8, new=8)


@dataclass(frozen=True)
class Speed:
    """What was measured of one contender at one batch."""

    rate: float  # tokens/s of all rows, without the reading of prompts
    spread: float  # of it, between the slowest and the fastest
    compiling: float  # seconds that the first time took longer
    tokens: int  # new ones of each row

    @property
    def ours(self) -> dict[str, float]:
        """Return what is written down of our own."""
        return {
            "heddle": round(self.rate),
            "spread": round(self.spread, 3),
            "compile_seconds": round(self.compiling, 1),
        }


def note(shape: Shape, name: str, **numbers: Any) -> None:
    """Record what was measured, unless the shape is one that tells nothing."""
    if shape != TINY:
        record(name, **numbers)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that some work takes, the device's own included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def speed(grow: Callable[[int], object], tokens: int, batch: int, device: torch.device, rounds: int = 3) -> Speed:
    """Measure what grows rows by some tokens: from the first of them to the last."""
    first = timed(lambda: grow(tokens), device)
    one = statistics.median(timed(lambda: grow(1), device) for _ in range(rounds))
    times = [timed(lambda: grow(tokens), device) for _ in range(rounds)]
    rates = [batch * (tokens - 1) / (spent - one) for spent in times]
    middle = statistics.median(rates)
    return Speed(middle, (max(rates) - min(rates)) / middle, max(0.0, first - statistics.median(times)), tokens)


# --- ours -------------------------------------------------------------------------------------------------------------


def ours(shape: Shape, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """Build the shape from the preset."""
    sizes = {"layers": shape.layers, "width": shape.width, "heads": shape.heads, "kv_heads": shape.kv_heads}
    with device:
        model = build("llama", **sizes, hidden=shape.hidden, vocab=shape.vocab, context=shape.context)
    assert isinstance(model, LanguageModel)
    return model.to(dtype).eval()


def prompts_of(shape: Shape, batch: int) -> list[list[int]]:
    """Return prompts of random tokens."""
    draw = torch.Generator().manual_seed(batch)
    return torch.randint(shape.vocab, (batch, shape.prompt), generator=draw, device="cpu").tolist()


def our_speed(model: LanguageModel, shape: Shape, batch: int, compiled: Literal["auto", "on", "off"]) -> Speed:
    """Measure generation through the public API, the host's work for each token included."""
    prompts, how = prompts_of(shape, batch), GenerationConfig(max_tokens=shape.new, compile=compiled)

    def grow(tokens: int) -> None:
        generate(model, prompts, how if tokens > 1 else replace(how, max_tokens=1, compile="off"))

    return speed(grow, shape.new, batch, next(model.parameters()).device)


@torch.inference_mode()
def kernels_of(model: LanguageModel, shape: Shape, batch: int, most: int = 14) -> None:
    """Print the kernels of the steps that are kept for a batch, by their time."""
    from torch.profiler import ProfilerActivity, profile

    kept = [one for one in cuda_graphs._CACHED[model].values() if isinstance(one, StaticStep)]
    for one in (one for one in kept if len(one.ids) == batch and one.graph.graph is not None):
        one.state.lengths.fill_(shape.prompt + shape.new // 2)
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
            for _ in range(3):
                one.run(model)
            torch.cuda.synchronize()
        events = sorted(seen.key_averages(), key=lambda event: -event.device_time_total)
        total, count = sum(e.device_time_total for e in events) / 3, sum(e.count for e in events) // 3
        print(f"  batch {batch}, {one.graph.mode}: {count} kernels, {total:.0f} us in them")
        for event in events[:most]:
            print(f"    {event.device_time_total / 3:8.1f} us x{event.count // 3:4d}  {event.key[:80]}")


def check(shape: Shape, device: torch.device, rows: int, tokens: int) -> None:
    """Compare the ids of compiled, recorded steps with those of torch's own kernels, one by one, in float32."""
    model = ours(shape, device, torch.float32)
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(shape.vocab, (3 + 5 * row,), generator=draw).tolist() for row in range(rows)]
    fast = generate(model, prompts, GenerationConfig(max_tokens=tokens, compile="on"))
    kernels.HAS_TRITON = False  # so that nothing of our own is in what we compare with
    plain = generate(model, prompts, GenerationConfig(max_tokens=tokens, compile="off"))
    kernels.HAS_TRITON = True
    same = sum(a == b for left, right in zip(fast, plain, strict=True) for a, b in zip(left, right, strict=True))
    print(f"check: {same}/{rows * tokens} ids equal in float32")
    note(shape, "decode_check", equal=same, of=rows * tokens)
    cuda_graphs.clear_static_states(model)


def packed(shape: Shape, device: torch.device, weights: Bits, words: argparse.Namespace) -> None:
    """Measure generation with matrices of fewer bits."""
    model = ours(shape, device, torch.bfloat16)
    quantize_model(model, weights)
    for batch in words.batches:
        found = our_speed(model, shape, batch, words.compile)
        print(f"{weights}, batch {batch}: heddle {found.rate:,.0f} tokens/s, spread {found.spread:.1%}", flush=True)
        note(
            shape,
            f"decode {weights}",
            batch=batch,
            prompt=shape.prompt,
            new=shape.new,
            compile=words.compile,
            **found.ours,
        )
        cuda_graphs.clear_static_states(model)


def prefill(model: LanguageModel, shape: Shape, batch: int, length: int) -> None:
    """Measure the reading of prompts: tokens/s, and the share of the device's arithmetic that they use."""
    hardware = choose_hardware()
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(shape.vocab, (batch, length), generator=draw).tolist()
    how = GenerationConfig(max_tokens=1, compile="off", chunk=length)
    spent = [timed(lambda: generate(model, prompts, how), hardware.device) for _ in range(4)][1:]
    rate = batch * length / statistics.median(spent)
    mfu = rate * forward_flops(model, length) / peak_flops(replace(hardware, dtype=next(model.parameters()).dtype))
    print(f"prefill {batch} x {length}: {rate:,.0f} tokens/s, MFU {mfu:.1%}")
    note(shape, "decode_prefill", batch=batch, length=length, tokens_per_second=round(rate), mfu=round(mfu, 4))


# --- peers ------------------------------------------------------------------------------------------------------------


class PlainLayer(nn.Module):
    """One layer of a Llama as it is written by hand, with a cache of fixed size."""

    def __init__(self, shape: Shape, batch: int) -> None:
        super().__init__()
        self.shape, self.head_width = shape, shape.width // shape.heads
        kv = shape.kv_heads * self.head_width
        self.norms = nn.ModuleList(nn.RMSNorm(shape.width, eps=1e-6) for _ in range(2))
        self.qkv = nn.Linear(shape.width, shape.width + 2 * kv, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)
        self.cache: Tensor
        self.register_buffer("cache", torch.randn(2, batch, shape.kv_heads, shape.context, self.head_width))

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, allowed: Tensor) -> Tensor:
        """Read one token a row, at one place."""
        shape, width = self.shape, self.head_width
        q, k, v = self.qkv(self.norms[0](x)).split(
            [shape.width, shape.kv_heads * width, shape.kv_heads * width], dim=-1
        )
        q, k, v = (t.unflatten(-1, (-1, width)).transpose(1, 2) for t in (q, k, v))
        q, k = (turned(t, cos, sin) for t in (q, k))
        self.cache[0].index_copy_(2, at, k)
        self.cache[1].index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=allowed, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        added: Tensor = self.down(F.silu(gate) * up)
        return x + added


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of features."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Plain(nn.Module):
    """A Llama as it is written by hand: one greedy step."""

    def __init__(self, shape: Shape, batch: int) -> None:
        super().__init__()
        self.context, half = shape.context, shape.width // shape.heads // 2
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(PlainLayer(shape, batch) for _ in range(shape.layers))
        self.norm, self.head = nn.RMSNorm(shape.width, eps=1e-6), nn.Linear(shape.width, shape.vocab, bias=False)
        angle = torch.outer(torch.arange(shape.context), 10_000 ** -(torch.arange(half) / half))
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids: Tensor, at: Tensor) -> None:
        """Read one token a row; put the next in its place."""
        x, cos, sin = self.embedding(ids), self.cos[at], self.sin[at]
        allowed = (torch.arange(self.context, device=at.device) <= at)[None, None, None]
        for layer in self.layers:
            x = layer(x, at, cos, sin, allowed)
        ids.copy_(self.head(self.norm(x)).argmax(-1))
        at.add_(1)


@torch.inference_mode()
def plain_speed(shape: Shape, batch: int, device: torch.device) -> Speed:
    """Measure plain PyTorch: compiled, and on a GPU replayed as one graph."""
    with device:
        model = Plain(shape, batch).to(torch.bfloat16).eval()
        ids, at = torch.zeros(batch, 1, dtype=torch.long), torch.tensor([shape.prompt])
    step: Any = torch.compile(model, fullgraph=True, dynamic=False) if device.type == "cuda" else model
    compiling = timed(lambda: (step(ids, at), step(ids, at)), device)
    again = lambda: step(ids, at)  # noqa: E731
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(ids, at)
        again = graph.replay

    def grow(tokens: int) -> None:
        at.fill_(shape.prompt)
        for _ in range(tokens - 1):
            again()

    found = speed(grow, shape.new, batch, device)
    return replace(found, compiling=compiling)


@torch.inference_mode()
def hugging_face_speed(shape: Shape, batch: int, device: torch.device) -> Speed:
    """Measure Hugging Face: its static cache, with the compilation that goes with it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
    )
    with device:
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        prompts = torch.tensor(prompts_of(shape, batch))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def grow(tokens: int) -> None:
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        seen = torch.ones_like(prompts)
        model.generate(prompts, **options, attention_mask=seen, cache_implementation="static" if tokens > 1 else None)

    return speed(grow, min(shape.new, ENOUGH), batch, device, rounds=2)  # its cache is then shorter: in its favour


PEERS = {"plain": plain_speed, "hugging_face": hugging_face_speed}


# --- all --------------------------------------------------------------------------------------------------------------


def limit(shape: Shape, batch: int) -> float:
    """Return the tokens/s at which weights and the filled part of the cache are read once a step."""
    kv = shape.kv_heads * shape.width // shape.heads
    layer = shape.width * (2 * shape.width + 2 * kv) + 3 * shape.width * shape.hidden
    cached = batch * (shape.prompt + shape.new / 2) * 2 * kv * shape.layers
    return batch * BANDWIDTH / (2 * (shape.layers * layer + shape.vocab * shape.width + cached))


def compare(model: LanguageModel, shape: Shape, words: argparse.Namespace, batch: int) -> None:
    """Measure ours and the peers at one batch; print and record."""
    device = next(model.parameters()).device
    mine = our_speed(model, shape, batch, words.compile)
    bar = f" (bar {BARS[batch]:,}: {'pass' if mine.rate >= BARS[batch] else 'MISSED'})" if batch in BARS else ""
    bar = "" if words.tiny else bar
    print(
        f"batch {batch}: heddle {mine.rate:,.0f} tokens/s, spread {mine.spread:.1%},"
        f" {mine.rate / limit(shape, batch):.0%} of the limit, compiled in {mine.compiling:.1f} s{bar}",
        flush=True,
    )
    numbers = mine.ours
    if words.kernels and device.type == "cuda":
        kernels_of(model, shape, batch)
    cuda_graphs.clear_static_states(model)
    for name in words.peers:
        theirs = PEERS[name](shape, batch, device)
        torch._dynamo.reset()
        numbers |= {name: round(theirs.rate), f"{name}_ratio": round(mine.rate / theirs.rate, 3)}
        numbers |= {f"{name}_spread": round(theirs.spread, 3), f"{name}_new": theirs.tokens}
        print(
            f"batch {batch}: {name} {theirs.rate:,.0f} tokens/s, spread {theirs.spread:.1%}, compiled in"
            f" {theirs.compiling:.1f} s; ours is {mine.rate / theirs.rate:.2f} times as fast",
            flush=True,
        )
    note(shape, "decode", batch=batch, prompt=shape.prompt, new=shape.new, compile=words.compile, **numbers)


def main() -> None:
    """Measure what the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=positive, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="on")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--weights", nargs="+", choices=["int8", "int4"], default=[])
    parser.add_argument("--tiny", action="store_true")
    words = parser.parse_args()
    need_gpu(words.tiny)
    shape, device = TINY if words.tiny else Shape(), choose_hardware().device
    if words.tiny:
        cuda_graphs.BACKEND = "eager"
    model = ours(shape, device, torch.bfloat16)
    for batch in words.batches:
        compare(model, shape, words, batch)
    for weights in words.weights:
        packed(shape, device, weights, words)
    if words.prefill:
        prefill(model, shape, 2 if words.tiny else 32, shape.context)
    if words.check:
        check(shape, device, 2 if words.tiny else 8, 8 if words.tiny else 256)


if __name__ == "__main__":
    run_main(main)
