"""Loading a large folder of Hugging Face's in bf16: time against plain reading of its files, and memory at its peak.

    python benchmarks/checkpoint_loading.py [--shape 3b|7b|1b] [--folder PATH] [--rounds 5] [--cold]

Each figure comes from a process of its own, in turns, with the files in the page cache for all of them, or, cold, for
none: then the disk is what is measured. Plain reading
is `readinto` of every file, once into one small buffer that is used again (no new memory is touched: the most that a
disk cache gives), once into memory of the files' own size, as anything must that keeps what it reads.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from entry_point import run_main
from results import record

from heddle.checkpoints.hf import load_model
from heddle.core.system import choose_hardware

BUFFER = 16 << 20  # bytes
SHARD = 2 << 30  # bytes
TIME_BAR, MEMORY_BAR = 1.2, 1.1


@dataclass(frozen=True)
class Shape:
    """A Llama."""

    layers: int
    width: int
    hidden: int
    heads: int
    vocab: int = 32_000

    def config(self) -> dict[str, Any]:
        """Return it in Hugging Face's words."""
        return {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": self.vocab,
            "hidden_size": self.width, "intermediate_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False, "dtype": "bfloat16",
        }  # fmt: skip

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every tensor's name and shape."""
        wide, tall, square = (self.hidden, self.width), (self.width, self.hidden), (self.width, self.width)
        yield "model.embed_tokens.weight", (self.vocab, self.width)
        for i in range(self.layers):
            at = f"model.layers.{i}."
            yield from ((f"{at}self_attn.{name}_proj.weight", square) for name in "qkvo")
            yield from ((f"{at}mlp.{name}_proj.weight", wide) for name in ("gate", "up"))
            yield f"{at}mlp.down_proj.weight", tall
            yield from ((f"{at}{name}_layernorm.weight", (self.width,)) for name in ("input", "post_attention"))
        yield "model.norm.weight", (self.width,)
        yield "lm_head.weight", (self.vocab, self.width)

    def size(self) -> int:
        """Return the bytes of all weights."""
        return sum(2 * _numbers(shape) for _, shape in self.tensors())


SHAPES = {
    "1b": Shape(16, 2048, 5632, 16),
    "3b": Shape(26, 3200, 8640, 32),
    "7b": Shape(32, 4096, 11_008, 32),
}


def _numbers(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


def make(shape: Shape, folder: Path) -> None:
    """Write a random model shard by shard, never more than a buffer of it in memory."""
    noise = (torch.randn(BUFFER // 2) * 0.02).to(torch.bfloat16).view(torch.uint8).numpy().data
    groups: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    for name, sides in shape.tensors():
        if groups[-1] and sum(2 * _numbers(s) for _, s in groups[-1]) + 2 * _numbers(sides) > SHARD:
            groups.append([])
        groups[-1].append((name, sides))
    places = {}
    for i, group in enumerate(groups, 1):
        file = f"model-{i:05}-of-{len(groups):05}.safetensors"
        header, end = {}, 0
        for name, sides in group:
            start, end = end, end + 2 * _numbers(sides)
            header[name] = {"dtype": "BF16", "shape": sides, "data_offsets": [start, end]}
            places[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for at in range(0, end, BUFFER):
                out.write(noise[: min(BUFFER, end - at)])
    index = {"metadata": {"total_size": shape.size()}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(shape.config()))


# --- what a child process does ----------------------------------------------------------------------------------------


def status(*names: str) -> list[int]:
    """Return figures of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    return [int(found[name]) * 1024 for name in names]


def read_over(folder: Path) -> None:
    """Read every file into one buffer, again and again."""
    buffer = bytearray(BUFFER)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def read_whole(folder: Path) -> list[memoryview]:
    """Read every file into memory of its own, which keeps it."""
    held = []
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            # memory from the system, not yet touched: a bytearray would be filled with zeros first
            flat = torch.empty(path.stat().st_size, dtype=torch.uint8).numpy().data
            at = 0
            while count := file.readinto(flat[at:]):
                at += count
            held.append(flat)
    return held


def load(folder: Path) -> object:
    """Load the model here."""
    return load_model(folder, choose_hardware("cpu", "bfloat16"))


ACTS: dict[str, Callable[[Path], object]] = {"read over": read_over, "read whole": read_whole, "load": load}


def child(act: str, folder: Path, watch: bool) -> None:
    """Do one thing, and print how long it took and what memory it held at most."""
    torch.zeros(1, dtype=torch.bfloat16).add_(1)
    (before,) = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    peaks, done = [0, 0], threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            for i, found in enumerate(status("RssAnon", "RssFile")):
                peaks[i] = max(peaks[i], found)

    watcher = threading.Thread(target=look)
    if watch:
        watcher.start()
    start = time.perf_counter()
    kept = ACTS[act](folder)
    seconds = time.perf_counter() - start
    done.set()
    (peak,) = status("VmHWM")
    report = {"seconds": seconds, "before": before, "peak": peak, "anonymous": peaks[0], "mapped": peaks[1]}
    print(json.dumps(report))
    del kept


def cool(folder: Path) -> None:
    """Let the page cache forget a folder's weights."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(act: str, folder: Path, watch: bool = False) -> dict[str, float]:
    """Let a process of its own do one thing."""
    words = [sys.executable, __file__, "--child", act, "--folder", str(folder), *(["--watch"] if watch else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, folder: Path, rounds: int, cold: bool) -> None:
    """Time all in turns, watch memory in a run of its own, print and record."""
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if not cold:
        run("read over", folder)  # the page cache is warm from here on
    seconds: dict[str, list[float]] = {act: [] for act in ACTS}
    for _ in range(rounds):
        for act in ACTS:
            if cold:
                cool(folder)
            seconds[act].append(run(act, folder)["seconds"])
    middle = {act: statistics.median(found) for act, found in seconds.items()}
    held = run("load", folder, watch=True)
    numbers = {
        "gigabytes": round(size / 1e9, 2),
        "seconds": {act: round(found, 2) for act, found in middle.items()},
        "spread": {act: [round(min(found), 2), round(max(found), 2)] for act, found in seconds.items()},
        "time_over_read_whole": round(middle["load"] / middle["read whole"], 3),
        "time_over_read_over": round(middle["load"] / middle["read over"], 3),
        "peak_over_weights": round(held["peak"] / size, 3),  # all of the process: Python and torch included
        "grown_over_weights": round((held["peak"] - held["before"]) / size, 3),
        "anonymous_over_weights": round(held["anonymous"] / size, 3),
        "cores": os.cpu_count(),
    }
    good = numbers["time_over_read_whole"] <= TIME_BAR and numbers["peak_over_weights"] <= MEMORY_BAR  # type: ignore[operator]
    print(
        json.dumps(
            {
                "name": f"loading {name}",
                "cache": "cold" if cold else "warm",
                **numbers,
                "bars": "pass" if good else "MISSED",
            }
        )
    )
    record(f"loading {name}", cache="cold" if cold else "warm", **numbers, bars=[TIME_BAR, MEMORY_BAR])


def main() -> None:
    """Make a folder where none is given, measure, and remove what was made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="3b")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", choices=ACTS)
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    if args.child:
        child(args.child, args.folder, args.watch)
        return
    if args.folder is not None and (args.folder / "config.json").exists():
        measure(args.shape, args.folder, args.rounds, args.cold)
        return
    folder = args.folder or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    need = SHAPES[args.shape].size()
    if shutil.disk_usage(folder).free < 1.2 * need:
        raise SystemExit(f"{folder}: want {need / 1e9:.1f} GB of free disk")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        make(SHAPES[args.shape], Path(made))
        measure(args.shape, Path(made), args.rounds, args.cold)


if __name__ == "__main__":
    run_main(main)
