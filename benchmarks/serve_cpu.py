"""CPU serving: served against offline decoding, the cost of invariance, a joining prompt, and a cached prefix.

    python benchmarks/serve_cpu.py [--width 256] [--layers 4] [--streams 32] [--models llama lstm_lm] [--record]

Times are CPU seconds of the process, so that other processes do not matter. Weights are random: speed does not depend
on them. Served and offline decode the same rows; offline is one batch that begins and ends together.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

from entry_point import run_main
from results import record

import heddle
from heddle.core import replace
from heddle.decoding import generation_config
from heddle.decoding.generation import complete
from heddle.decoding.runtime import Request
from heddle.models.networks import AutoregressiveModel
from heddle.serving import Engine, EngineConfig, EngineRequest

VOCAB, PROMPT, NEW, LONG, ROUNDS = 8192, 32, 64, 1024, 3
BARS = {"served_over_offline": 0.85, "invariance": 1.10, "first_token": 2.0, "gap": 3.0, "prefix": 0.2}


def build(name: str, width: int, layers: int) -> AutoregressiveModel:
    """Build a model of random weights."""
    heads = {} if name == "lstm_lm" else {"heads": width // 64, "hidden": 3 * width, "context": 2048}
    heads |= {"experts": 8, "kv_heads": width // 64} if name.startswith("mixtral") else {}
    model = heddle.build(name, width=width, layers=layers, vocab=VOCAB, **heads).eval()
    if not isinstance(model, AutoregressiveModel):
        raise TypeError(name)
    return model


def requests(count: int, length: int = PROMPT, new: int = NEW) -> list[EngineRequest]:
    """Return requests of different prompts that never end early."""
    config = generation_config({"max_tokens": new})
    rows = [[1 + (i * 7919 + 31 * at) % (VOCAB - 1) for at in range(length)] for i in range(count)]
    return [EngineRequest(Request(row), config) for row in rows]


def offline(model: AutoregressiveModel, batch: Sequence[EngineRequest]) -> float:
    """Return the CPU seconds of one offline batch."""
    begun = time.process_time()
    complete(model, [one.request for one in batch], replace(batch[0].config, compile="off"))
    return time.process_time() - begun


def served(engine: Engine, batch: Sequence[EngineRequest]) -> float:
    """Return the CPU seconds until the engine has answered all."""
    begun = time.process_time()
    for handle in [engine.submit(one) for one in batch]:
        handle.result()
    return time.process_time() - begun


def throughput(model: AutoregressiveModel, streams: int) -> dict[str, float]:
    """Compare the engine, invariant and not, with an offline batch, in turns."""
    counts = sorted({1, 4, streams})
    found: dict[str, float] = {}
    with (
        Engine(model, EngineConfig(slots=streams, prefix_bytes=0)) as invariant,
        Engine(model, EngineConfig(slots=streams, prefix_bytes=0, invariant="off")) as free,
    ):
        for count in counts:
            batch = requests(count)
            rounds = [(offline(model, batch), served(invariant, batch), served(free, batch)) for _ in range(ROUNDS)]
            alone, strict, loose = (statistics.median(times) for times in zip(*rounds, strict=True))
            found[f"tokens_per_cpu_second_{count}"] = count * NEW / strict
            found[f"served_over_offline_{count}"] = alone / strict
            found[f"invariance_{count}"] = strict / loose
    return found


def joining(model: AutoregressiveModel, streams: int) -> dict[str, float]:
    """Measure a request that joins running streams: its first token against its prompt alone, and the others' gaps."""
    with Engine(model, EngineConfig(slots=streams, prefix_bytes=0)) as engine:
        (long,) = requests(1, LONG, 1)
        alone = served(engine, [long])
        times: list[float] = []
        running = [engine.submit(one) for one in requests(streams - 2, new=200)]
        watched = engine.submit(requests(streams - 1, new=200)[-1], lambda event: times.append(time.process_time()))
        while len(times) < 20:
            time.sleep(0.01)
        quiet = statistics.median(b - a for a, b in itertools.pairwise(times))
        begun, first = time.process_time(), served(engine, [long])
        gaps = [b - a for a, b in itertools.pairwise(times) if begun <= b <= begun + first]
        for handle in (*running, watched):
            handle.cancel()
    return {"first_token": first / (alone + quiet), "gap": max(gaps) / quiet, "prompt_seconds": alone}


def prefix(model: AutoregressiveModel) -> float:
    """Return the time of a prompt whose prefix of 1 k tokens is cached, over that of a cold one."""
    with Engine(model, EngineConfig(slots=4)) as engine:
        (one,) = requests(1, LONG + 16, 1)
        cold = served(engine, [one])
        return served(engine, [one]) / cold


def main() -> None:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--models", nargs="+", default=["llama", "lstm_lm"], help="mixtral-8x7b: experts")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for name in args.models:
        model = build(name, args.width, args.layers)
        numbers = throughput(model, args.streams) | joining(model, args.streams) | {"prefix": prefix(model)}
        found[name] = {key: round(value, 3) for key, value in numbers.items()}
        print(name, found[name], flush=True)
    print("bars:", BARS)
    if args.record:
        record("serve_cpu", shape=vars(args), **found)


if __name__ == "__main__":
    run_main(main)
