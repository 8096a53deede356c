"""Loader speed: rows built and masked a second by one core, with no model; this checkout alone or beside another.

    python benchmarks/loader.py [--against CHECKOUT] [--rounds 3] [--seconds 1.0] [--record]

Documents of 20 to 2,000 random tokens. With `--against`, both checkouts read the same shards in processes of their own,
in turns; printed are the medians of the rounds and the ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from entry_point import run_main
from results import record

VOCAB, MASK, END, TOKENS = 16_384, 16_383, 16_382, 3_000_000
SENTINELS = tuple(range(16_000, 16_100))
CASES: dict[str, tuple[int, int, bool, str, dict[str, Any]]] = {
    # rows of a batch, tokens of a row, whether documents are apart, objective, its fields
    "masked_token, 256 x 128": (256, 128, True, "masked_token", {}),
    "masked_token, 64 x 512": (64, 512, True, "masked_token", {}),
    "whole words, 256 x 128": (256, 128, True, "masked_token", {"unit": "word"}),
    "replaced_token, 256 x 128": (256, 128, True, "replaced_token", {}),
    "span_corruption, 128 x 568": (128, 568, False, "span_corruption", {}),
    "next_token, 256 x 128": (256, 128, True, "next_token", {}),
}


def write_shards(folder: Path) -> None:
    """Write documents of random tokens."""
    from heddle.data.shards import ShardWriter

    draw, left = np.random.default_rng(0), TOKENS
    with ShardWriter(folder, vocab=VOCAB, end=END, fingerprint="") as writer:
        while left > 0:
            size = int(np.exp(draw.uniform(np.log(20), np.log(2000))))
            writer.add(draw.integers(0, 16_000, size), bytes=size, words=size)
            left -= size


def noise(kind: str, fields: dict[str, Any]) -> Callable[[Any], Any]:
    """Return what prepares a batch."""
    from heddle.core import decode
    from heddle.data.rows import guessed_traits
    from heddle.objectives import ObjectiveConfig

    special = {"<|mask|>": MASK, "end": END, "decoder_start": END}
    special |= {f"<extra_id_{number}>": one for number, one in enumerate(SENTINELS)}
    objective = decode(ObjectiveConfig, {"kind": kind, **fields}).resolve(special, VOCAB)
    return objective.preparer(0, partial(guessed_traits, VOCAB))


def measure(folder: Path, seconds: float) -> dict[str, float]:
    """Return rows a second of each case, on one thread."""
    from heddle.data.rows import Loader, PackedRows
    from heddle.data.shards import Shards

    shards, found = Shards.open(folder), {}
    for name, (batch, length, apart, kind, fields) in CASES.items():
        plan = PackedRows(length=length, boundaries="reset" if apart else "stream").build(shards, 0)
        batches = iter(Loader(plan, batch, transform=noise(kind, fields)))
        for _ in range(3):
            next(batches)
        start, taken = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(batches)
            taken += 1
        found[name] = taken * batch / (time.perf_counter() - start)
    return found


def measured_by(checkout: Path, folder: Path, seconds: float) -> dict[str, float]:
    """Measure in a process that imports another checkout."""
    words = f"loader.measure(Path({str(folder)!r}), {seconds})"
    code = f"import json, loader; from pathlib import Path; print(json.dumps({words}))"
    here = os.pathsep.join((str(checkout / "src"), str(Path(__file__).parent)))
    environment = os.environ | {"PYTHONPATH": here, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure, print, and record where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout of Heddle")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--record", action="store_true", help="append to benchmarks/results.jsonl")
    given = parser.parse_args()
    own = Path(__file__).parents[1]
    sides = [given.against.resolve(), own] if given.against else [own]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "shards"
        write_shards(folder)
        rounds = [[measured_by(side, folder, given.seconds) for side in sides] for _ in range(given.rounds)]
    for name in CASES:
        rates = [statistics.median(each[side][name] for each in rounds) for side in range(len(sides))]
        line = {"case": name, "rows_per_second": round(rates[-1])}
        if given.against:
            line |= {"against": round(rates[0]), "ratio": round(rates[-1] / rates[0], 2)}
        print(json.dumps(line), flush=True)
        if given.record:
            record("loader", **line)


if __name__ == "__main__":
    run_main(main)
