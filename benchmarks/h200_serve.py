"""Serving on one GPU: batch invariance, its cost, load against offline decoding, first tokens and gaps; wall time.

    python benchmarks/h200_serve.py [--parts invariance cost load joining prefix] [--streams 64] [--tiny]

Weights are random and in bfloat16: speed does not depend on them. `--tiny` runs every part in seconds on a CPU, in
float32, and measures nothing of worth. Each part prints a JSON line, and its numbers are recorded unless it is tiny.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, Literal

import torch
from entry_point import positive, run_main
from results import need_gpu, record

import heddle
from heddle.core import replace
from heddle.decoding import generation_config
from heddle.decoding.generation import Completion, complete
from heddle.decoding.runtime import Request
from heddle.models.networks import AutoregressiveModel
from heddle.serving import Engine, EngineConfig, EngineRequest

PARTS = ("invariance", "cost", "load", "joining", "prefix")
BARS = {"different": 0, "cost": 1.25, "served_over_offline": 0.90, "first_token": 2.0, "gap": 3.0, "prefix": 0.2}
ONE_B = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "hidden": 8192, "vocab": 32_000, "context": 8192}
SMALL = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 96, "vocab": 211, "context": 256}
KINDS: dict[str, dict[str, int]] = {
    "llama": {"layers": 8, "width": 1024, "heads": 16, "kv_heads": 4, "hidden": 2816, "vocab": 8192, "context": 2048},
    "lstm_lm": {"layers": 4, "width": 1024, "vocab": 8192},
    "mixtral-8x7b": {
        **{"layers": 4, "width": 512, "heads": 8, "kv_heads": 4, "hidden": 1024, "experts": 8},
        **{"vocab": 8192, "context": 2048},
    },
    "seq2seq_attention": {"layers": 2, "width": 512, "vocab": 8192},
}
TINY_KINDS: dict[str, dict[str, int]] = {
    "llama": SMALL,
    "lstm_lm": {"layers": 2, "width": 64, "vocab": 211},
    "mixtral-8x7b": {**SMALL, "experts": 4},
    "seq2seq_attention": {"layers": 1, "width": 64, "vocab": 211},
}
Invariant = Literal["on", "off"]


def build(name: str, sizes: dict[str, int], tiny: bool) -> AutoregressiveModel:
    """Build a model of random weights on the device that is measured."""
    with torch.device("cpu" if tiny else "cuda"):
        model = heddle.build(name, **sizes).to(torch.float32 if tiny else torch.bfloat16).eval()
    if not isinstance(model, AutoregressiveModel):
        raise TypeError(name)
    return model


def prompts(model: AutoregressiveModel, count: int, length: int) -> list[Request]:
    """Return different prompts of a length; of an encoder-decoder, sources."""
    draw = random.Random(count + length)
    rows = [[1 + draw.randrange(model.vocab - 1) for _ in range(length)] for _ in range(count)]
    return [Request(ids[:1], ids) if model.reads_source else Request(ids) for ids in rows]


def requests(model: AutoregressiveModel, count: int, length: int, new: int) -> list[EngineRequest]:
    """Return requests of one length that never end early."""
    config = generation_config({"max_tokens": new})
    return [EngineRequest(one, config) for one in prompts(model, count, length)]


def seconds(engine: Engine, batch: Sequence[EngineRequest]) -> float:
    """Return the seconds until the engine has answered all."""
    begun = time.perf_counter()
    for handle in [engine.submit(one) for one in batch]:
        handle.result()
    return time.perf_counter() - begun


# --- invariance -------------------------------------------------------------------------------------------------------


def mixed(model: AutoregressiveModel, streams: int, longest: int) -> list[EngineRequest]:
    """Return requests of mixed lengths and settings, with log-probabilities."""
    draw, found = random.Random(1), []
    for number in range(streams):
        options: Any = {"max_tokens": draw.randrange(8, 48), "logprobs": 2}
        options |= {"temperature": 1.0, "seed": number} if number % 3 else {}
        length = draw.choice([5, 20, 33, 70, longest // 2, longest])
        found.append(EngineRequest(prompts(model, 1, min(length, longest) + number % 7)[0], generation_config(options)))
    return found


def answers(
    model: AutoregressiveModel, batch: Sequence[EngineRequest], slots: int, invariant: Invariant, together: bool
) -> list[Completion]:
    """Return the engine's answers to requests at once, or one after the other."""
    with Engine(model, EngineConfig(slots=slots, prefix_bytes=0, invariant=invariant)) as engine:
        if together:
            return [handle.result() for handle in [engine.submit(one) for one in batch]]
        return [engine.submit(one).result() for one in batch]


def different(one: Sequence[Completion], other: Sequence[Completion]) -> int:
    """Count the answers whose ids or log-probabilities are not equal to the last bit."""
    return sum((a.ids, a.token_logprobs) != (b.ids, b.token_logprobs) for a, b in zip(one, other, strict=True))


def invariance(args: argparse.Namespace) -> dict[str, Any]:
    """Count requests whose bits depend on their neighbours, with the mode and, as a control, without it."""
    found: dict[str, Any] = {}
    for name, sizes in (TINY_KINDS if args.tiny else KINDS).items():
        model = build(name, sizes, args.tiny)
        batch = mixed(model, args.streams, 40 if args.tiny or model.reads_source else 1000)
        some = batch[::8]
        counts: dict[str, Any] = {"alone": len(some)}
        modes: tuple[Invariant, ...] = ("on", "off")
        for mode in modes:
            try:
                together = answers(model, batch, args.streams, mode, together=True)[::8]
                alone = answers(model, some, args.streams, mode, together=False)
            except heddle.HeddleError as error:  # the device gives no equal bits: said, and the other kinds go on
                counts[f"refused_{mode}"] = str(error)
                continue
            counts["different" if mode == "on" else "different_without"] = different(together, alone)
        found[name] = counts
    return found


# --- speed ------------------------------------------------------------------------------------------------------------


def cost(args: argparse.Namespace, model: AutoregressiveModel) -> dict[str, float]:
    """Compare the engine with the mode and without it, in turns."""
    length, new = (16, 8) if args.tiny else (256, 128)
    batch, times = requests(model, args.streams, length, new), {}
    for mode in ("on", "off"):
        config = EngineConfig(slots=args.streams, capacity=length + new, prefix_bytes=0, invariant=mode)
        with Engine(model, config) as engine:
            seconds(engine, batch)
            times[mode] = statistics.median(seconds(engine, batch) for _ in range(3))
    return {"cost": times["on"] / times["off"], "tokens_per_second": args.streams * new / times["on"]}


def load(args: argparse.Namespace, model: AutoregressiveModel) -> dict[str, float]:
    """Compare the engine in its default mode with one offline batch of the same rows, in turns."""
    length, new = (16, 8) if args.tiny else (512, 256)
    batch = requests(model, args.streams, length, new)
    config = EngineConfig(slots=args.streams, capacity=length + new, prefix_bytes=0)
    rounds = []
    with Engine(model, config) as engine:
        for _ in range(4):
            begun = time.perf_counter()
            complete(model, [one.request for one in batch], replace(batch[0].config, compile="auto"))
            offline = time.perf_counter() - begun
            rounds.append((offline, seconds(engine, batch)))
    offline, served = (statistics.median(times) for times in zip(*rounds[1:], strict=True))
    return {"served_over_offline": offline / served, "tokens_per_second": args.streams * new / served}


def joining(args: argparse.Namespace, model: AutoregressiveModel) -> dict[str, float]:
    """Measure the first token of requests that join running ones, one at a time, and gaps while a long prompt joins."""
    short, long, new = (16, 100, 100) if args.tiny else (512, 4096, 2000)
    streams = min(32, args.streams)
    config = EngineConfig(slots=streams, capacity=min(8192, model.context), prefix_bytes=0)
    with Engine(model, config) as engine:
        seconds(engine, requests(model, 1, long, 1))
        alone = statistics.median(seconds(engine, requests(model, 1, short, 1)) for _ in range(5))
        times: list[float] = []
        running = [engine.submit(one) for one in requests(model, streams - 2, 32, new)]
        watched = engine.submit(requests(model, 1, 33, new)[0], lambda event: times.append(time.perf_counter()))
        while len(times) < 20:
            time.sleep(0.002)
        quiet = statistics.median(b - a for a, b in itertools.pairwise(times))
        firsts = sorted(seconds(engine, requests(model, 1, short - number % 9, 1)) for number in range(24))
        begun = time.perf_counter()
        seconds(engine, requests(model, 1, long, 1))
        ended = time.perf_counter()
        gaps = sorted(b - a for a, b in itertools.pairwise(times) if begun <= b <= ended)
        for handle in (*running, watched):
            handle.cancel()
    p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))] if gaps else quiet
    found = {"first_token": firsts[-1] / (alone + quiet), "first_token_ms": 1000 * firsts[len(firsts) // 2]}
    return found | {"gap": p99 / quiet, "step_ms": 1000 * quiet, "long_prompt_ms": 1000 * (ended - begun)}


def prefix(args: argparse.Namespace, model: AutoregressiveModel) -> dict[str, float]:
    """Return the first token's time where a prefix of 1 k tokens is cached, over that of a cold prompt."""
    length = 80 if args.tiny else 1056
    with Engine(model, EngineConfig(slots=4, chunk=32 if args.tiny else None)) as engine:
        seconds(engine, requests(model, 1, length + 1, 1))
        (one,) = requests(model, 1, length, 1)
        cold = seconds(engine, [one])
        return {"prefix": seconds(engine, [one]) / cold}


def main() -> None:
    """Measure the parts that are requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--streams", type=positive, default=64)
    parser.add_argument("--tiny", action="store_true", help="seconds on a CPU, nothing recorded")
    args = parser.parse_args()
    need_gpu(args.tiny)
    found: dict[str, Any] = {}
    model = None
    for part in args.parts:
        begun = time.perf_counter()
        if part == "invariance":
            found[part] = invariance(args)
        else:
            model = build("llama", SMALL if args.tiny else ONE_B, args.tiny) if model is None else model
            measured = {"cost": cost, "load": load, "joining": joining, "prefix": prefix}[part](args, model)
            found[part] = {name: round(value, 4) for name, value in measured.items()}
        print(json.dumps({part: found[part], "seconds": round(time.perf_counter() - begun, 1)}), flush=True)
    print("bars:", json.dumps(BARS))
    if not args.tiny:
        record("h200_serve", streams=args.streams, **found)


if __name__ == "__main__":
    run_main(main)
