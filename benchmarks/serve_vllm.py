"""Serving beside vLLM on a CPU: the same answers to 200 requests, and speed at 1, 8 and 32 streams in float32.

    python benchmarks/serve_vllm.py --vllm PYTHON --model FILE.gguf [--out FILE] [--store FILE] [--record]

`make bench-serve` makes vLLM's environment and brings SmolLM2-135M-Instruct. Both servers read one folder that
`heddle convert --to hf` wrote. Speed is new tokens per CPU second of a server's processes, so that other processes do
not matter, and per second; both servers run at once and are asked in turns. Heddle serves in its default, invariant
mode. `--store` writes vLLM's answers for the small model whose weights are the same everywhere: `make test` has them.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import differential
import peer_servers
from entry_point import positive, run_main
from peer_servers import NAME, PeerServer, free_port, running
from results import commit, device, record

import heddle
from heddle.cli.main import main as heddle_main
from heddle.core import EnvironmentFault

PROMPT, NEW, SLOTS, CONTEXT = 32, 64, 32, 512
STREAMS, ROUNDS, BAR = (1, 8, 32), 3, 0.8


def export(source: Path, folder: Path) -> Path:
    """Write a model as a Hugging Face folder in float32."""
    if heddle_main(["convert", str(source), str(folder), "--to", "hf"]):
        raise EnvironmentFault(f"convert: want a folder {folder}")
    return folder


@contextmanager
def both(folder: Path, vllm: Path, threads: int, logs: Path) -> Iterator[tuple[PeerServer, PeerServer]]:
    """Run Heddle and vLLM on one folder, each with some threads."""
    (port, other), own = (free_port(), free_port()), {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    ours = peer_servers.heddle_command(folder, port, SLOTS, CONTEXT)
    theirs = peer_servers.vllm_command(vllm, folder, other, SLOTS, CONTEXT)
    settings = peer_servers.vllm_settings(vllm, threads)
    with (
        running("heddle", ours, port, own, logs / "heddle.log") as first,
        running("vllm", theirs, other, settings, logs / "vllm.log") as second,
    ):
        yield first, second


def streams(server: PeerServer, count: int, seed: int) -> dict[str, float]:
    """Stream to several clients at once; return tokens per CPU second and per second, and when the first token came."""
    prompts = [[1000 + (seed * 7919 + i * 977 + 31 * at) % 40_000 for at in range(PROMPT)] for i in range(count)]
    bodies = [
        {"model": NAME, "prompt": prompt, "max_tokens": NEW, "min_tokens": NEW, "temperature": 0} for prompt in prompts
    ]
    used, begun = server.cpu_seconds, time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        times = list(pool.map(lambda body: server.stream("/v1/completions", body), bodies))
    seconds, used = time.monotonic() - begun, server.cpu_seconds - used
    first = statistics.median(one[0] - begun for one in times)
    return {"per_cpu_second": count * NEW / used, "per_second": count * NEW / seconds, "first_token_seconds": first}


def speed(ours: PeerServer, theirs: PeerServer) -> dict[str, Any]:
    """Measure both servers in turns; medians of the rounds after a first one."""
    found: dict[str, Any] = {}
    for count in STREAMS:
        rounds = [[streams(one, count, 10 * count + turn) for one in (ours, theirs)] for turn in range(ROUNDS + 1)][1:]
        medians = [
            {key: statistics.median(pair[who][key] for pair in rounds) for key in rounds[0][who]} for who in (0, 1)
        ]
        ratios = [mine["per_cpu_second"] / other["per_cpu_second"] for mine, other in rounds]
        kept = {"heddle": medians[0], "vllm": medians[1], "ratio": statistics.median(ratios), "ratios": ratios}
        found[str(count)] = _rounded(kept)
        print(count, "streams:", json.dumps(found[str(count)]), flush=True)
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else round(value, 3)


def compare(
    folder: Path, ours: PeerServer, theirs: PeerServer, sample: Sequence[int]
) -> tuple[dict[str, Any], list[Any]]:
    """Ask both servers the same requests."""
    asked = differential.requests(sample)
    answers = [differential.ask(server, asked) for server in (ours, theirs)]
    found = differential.summary(*answers) | {"weights": differential.weight_hash(folder)}
    print("differential:", json.dumps(found), flush=True)
    return found, [list(one) for one in zip(asked, answers[1], strict=True)]


def store(file: Path, folder: Path, version: str, answers: list[Any]) -> None:
    """Write requests and vLLM's answers, a line each, after a line with the hash of the weights."""
    first = {"weights": differential.weight_hash(folder), "server": version, "dtype": "float32"}
    lines = [{"path": path, "body": body, "answer": _stored(answer)} for (path, body), answer in answers]
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [first, *lines]))


def _stored(answer: dict[str, Any]) -> dict[str, Any]:
    def shorter(values: list[Any]) -> list[Any]:
        return [None if one is None else round(one, 6) for one in values]

    kept = {key: value for key, value in answer.items() if key != "text"}
    return kept | {"logprobs": shorter(answer["logprobs"]), "gaps": shorter(answer["gaps"])}


def main() -> None:
    """Compare answers and speed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True, help="the Python of an environment with vLLM")
    parser.add_argument(
        "--model", type=Path, help="a model to compare answers and speed on; none: the small one's only"
    )
    parser.add_argument("--threads", type=positive, default=1, help="of each server")
    parser.add_argument("--out", type=Path, help="write the numbers to this file")
    parser.add_argument("--store", type=Path, help="write vLLM's answers for the small model to this file")
    parser.add_argument("--record", action="store_true", help="append the numbers to benchmarks/results.jsonl")
    given = parser.parse_args()
    found: dict[str, Any] = {"commit": commit(), "device": device(), "threads": given.threads}
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        small = export(differential.exact_model().save(work / "small"), work / "small-hf")
        with both(small, given.vllm, given.threads, work) as servers:
            found["vllm"] = servers[1].get("/version")["version"]
            found["small"], answers = compare(small, *servers, differential.ASCII)
        if given.store is not None:
            store(given.store, small, f"vllm {found['vllm']}", answers)
        if given.model is not None:
            folder = export(given.model, work / "model-hf")
            sample = heddle.load(folder, device="cpu").tokenizer.encode(" ".join(differential.TEXTS))
            with both(folder, given.vllm, given.threads, work) as servers:
                found["model"], _ = compare(folder, *servers, sample)
                found["streams"] = speed(*servers)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    if given.record:
        record("serve_vllm", **found)
    if any(found[name]["faults"] for name in ("small", "model") if name in found):
        raise SystemExit(1)


if __name__ == "__main__":
    run_main(main)
