"""Prepare a large corpus beside the tokenizer library alone: throughput of both on the same cores, and peak memory.

Run: python benchmarks/prepare_data.py [--megabytes 2000] [--folder DIR]
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers
from entry_point import run_main
from results import record

from heddle.core import Purpose, numpy_generator
from heddle.data.shards import prepare
from heddle.data.sources import CorpusConfig, DocumentCounter, JsonlSource
from heddle.text.tokenizers import BpeTokenizer, load_tokenizer

FILE = 64 << 20  # bytes of one corpus file
LIBRARY_SHARE = 64 << 20  # bytes on which the library alone is timed, before and after ours
GOAL, LIMIT = 0.8, 700


def make_corpus(folder: Path, size: int) -> None:
    """Write JSON lines of stretches of the standard library, each with some words changed, so that none repeats."""
    text = "".join(document.text for _, document in CorpusConfig().split_documents(DocumentCounter()))
    draw = numpy_generator(0, Purpose.DATA, "benchmark")
    folder.mkdir(parents=True)
    written = number = 0
    while written < size:
        with (folder / f"part-{number:04d}.jsonl").open("w", encoding="utf-8") as file:
            while file.tell() < min(FILE, size - written):
                file.write(json.dumps({"text": _variation(text, draw)}, ensure_ascii=False) + "\n")
            written += file.tell()
        number += 1


def _variation(text: str, draw: np.random.Generator) -> str:
    start = int(draw.integers(0, len(text) - 20_000))
    words = text[start : start + int(draw.integers(500, 16_000))].split(" ")
    places = draw.integers(0, len(words), 1 + len(words) // 20).tolist()
    letters = draw.integers(97, 123, 6 * len(places), np.uint8).tobytes().decode()
    for number, place in enumerate(places):
        words[place] = letters[6 * number : 6 * number + 6]
    return " ".join(words)


class Clock:
    """Wall and processor seconds since it was made; on a busy machine the second is the fairer."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def rates(self, size: int) -> dict[str, float]:
        """Return megabytes for each second of either kind."""
        wall, processor = time.perf_counter() - self._wall, time.process_time() - self._processor
        return {"rate": size / 1e6 / wall, "processor_rate": size / 1e6 / processor}


def library_rate(work: Path) -> dict[str, float]:
    """Time the library's own batch calls on texts held in memory, results thrown away: the better of its two."""
    inner = tokenizers.Tokenizer.from_file(str(work / "tokenizer.json"))
    batches = list(_text_batches(work / "corpus"))
    size = sum(len(text.encode()) for batch in batches for text in batch)
    found = []
    for call in (inner.encode_batch, inner.encode_batch_fast):
        clock = Clock()
        for batch in batches:
            call(batch, add_special_tokens=False)
        found.append(clock.rates(size))
    return {name: max(rates[name] for rates in found) for name in found[0]}


def _text_batches(folder: Path) -> Iterator[list[str]]:
    batch: list[str] = []
    size = total = 0
    for path in sorted(folder.iterdir()):
        with path.open(encoding="utf-8") as file:
            for line in file:
                batch.append(json.loads(line)["text"])
                size += len(line)
                if size >= 1 << 20:
                    yield batch
                    total, batch, size = total + size, [], 0
                if total >= LIBRARY_SHARE:
                    return
    if batch:
        yield batch


def our_rate(work: Path) -> dict[str, float]:
    """Time the whole of `prepare`: reading, checking, encoding, writing, syncing."""
    corpus = CorpusConfig(sources=(JsonlSource(path=str(work / "corpus")),))
    tokenizer = load_tokenizer(work / "tokenizer.json")
    done = 0

    def count(documents: int, size: int) -> None:
        nonlocal done
        done = size

    clock = Clock()
    prepare(corpus, tokenizer, work / "prepared", count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return clock.rates(done) | {"megabytes": done / 1e6, "peak_mb": peak}


def _child(what: str, work: Path) -> dict[str, float]:
    """Measure in a process of its own, so that peak memory is that of the work alone."""
    command = [sys.executable, __file__, "--measure", what, "--folder", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {str(k): float(v) for k, v in json.loads(done.stdout).items()}


def compare(megabytes: int, work: Path) -> None:
    """Measure the library, ours, and the library again; print both rates and their ratio, and file the numbers."""
    make_corpus(work / "corpus", megabytes * 1_000_000)
    learn = CorpusConfig(sources=(JsonlSource(path=str(work / "corpus" / "part-0000.jsonl")),))
    BpeTokenizer(vocab=8192).train(learn.sample(1 << 23)).save(work / "tokenizer.json")
    before, ours, after = _child("library", work), _child("ours", work), _child("library", work)
    library = {name: max(before[name], after[name]) for name in before}
    ratio = {name: ours[name] / library[name] for name in library}
    print(f"{ours['megabytes']:.0f} MB, load {os.getloadavg()[1]:.1f}")
    print(f"{'':10}{'MB/s':>8}{'MB per processor second':>26}")
    for name, rates in {"library": library, "prepare": ours, "ratio": ratio}.items():
        print(f"{name:10}{rates['rate']:8.2f}{rates['processor_rate']:26.2f}")
    print(f"want a ratio of at least {GOAL}; peak memory {ours['peak_mb']:.0f} MB, want under {LIMIT}")
    record(
        "prepare",
        library_mb_s=round(library["rate"], 3),
        prepare_mb_s=round(ours["rate"], 3),
        ratio=round(ratio["rate"], 3),
        processor_ratio=round(ratio["processor_rate"], 3),
        megabytes=round(ours["megabytes"]),
        peak_mb=round(ours["peak_mb"]),
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--measure", choices=["library", "ours"], default=None)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(library_rate(given.folder) if given.measure == "library" else our_rate(given.folder)))
        return
    work = Path(tempfile.mkdtemp(prefix="heddle-prepare-", dir=given.folder))
    try:
        compare(given.megabytes, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    run_main(main)
