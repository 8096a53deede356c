"""R11: damaged token shards are refused before training, and a file that shrinks under a reader never kills it."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heddle.core import DamageError
from heddle.data.shards import Shards, ShardWriter
from heddle.data.shards.shard_manifest import manifest_text

END = 999


def write(folder: Path, seed: int, documents: int = 60) -> Path:
    rng = np.random.default_rng(seed)
    with ShardWriter(folder, vocab=1000, end=END, fingerprint=str(seed), shard_tokens=1500) as writer:
        for size in rng.integers(1, 120, documents):
            writer.add(rng.integers(0, END, size), bytes=int(size), words=1)
    return folder


def refused(folder: Path) -> bool:
    """Tell whether opening says, in one line, what is wrong."""
    try:
        Shards.open(folder)
    except DamageError as error:
        return len(str(error).splitlines()) == 1 and str(folder) in str(error)
    return False


def resign(folder: Path, change: Callable[[dict], None]) -> None:
    """Rewrite the manifest with a checksum that fits, as a faulty tool would: only the content is wrong."""
    plain = json.loads((folder / "manifest.json").read_text())
    del plain["checksum"]
    change(plain)
    (folder / "manifest.json").write_text(manifest_text(plain))


def resign_files(folder: Path) -> None:
    def measure(plain: dict) -> None:
        for file in plain["files"]:
            content = (folder / file["name"]).read_bytes()
            file["size"], file["sha256"] = len(content), hashlib.sha256(content).hexdigest()

    resign(folder, measure)


def damaged(good: Path, spare: Path, damage: Callable[[Path], None]) -> bool:
    shutil.rmtree(spare, ignore_errors=True)
    shutil.copytree(good, spare)
    damage(spare)
    return refused(spare)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def mix_ups(other: Path) -> dict[str, Callable[[Path], object]]:
    """Name the damage of whole files in the wrong place, and of manifests that fit their checksum but not the data."""
    stale = "ends-00001.bin"
    return {
        "token files swapped": lambda f: swap(f / "tokens-00000.bin", f / "tokens-00001.bin"),
        "index files swapped": lambda f: swap(f / "ends-00000.bin", f / "ends-00001.bin"),
        "tokens and index swapped": lambda f: swap(f / "tokens-00000.bin", f / "ends-00000.bin"),
        "tokens of another corpus": lambda f: shutil.copy(other / "tokens-00000.bin", f),
        "manifest of another corpus": lambda f: shutil.copy(other / "manifest.json", f),
        "stale index": lambda f: shutil.copy(other / stale, f),
        "stale index, signed anew": lambda f: (shutil.copy(other / stale, f), resign_files(f)),
        "swapped files, signed anew": lambda f: (swap(f / "ends-00000.bin", f / "ends-00001.bin"), resign_files(f)),
        "shifted index, signed anew": lambda f: (shift(f / "ends-00000.bin"), resign_files(f)),
        "wider dtype": lambda f: resign(f, lambda m: m.update(dtype="uint32")),
        "unknown dtype": lambda f: resign(f, lambda m: m.update(dtype="float16")),
        "smaller vocabulary": lambda f: resign(f, lambda m: m.update(vocab=500, end=499)),
        "other end": lambda f: resign(f, lambda m: m.update(end=3)),
        "wrong counts": lambda f: resign(f, lambda m: m.update(documents=m["documents"] + 1)),
        "path out of the folder": lambda f: resign(f, lambda m: m["files"][0].update(name="../tokens-00000.bin")),
        "files left out": lambda f: resign(f, lambda m: m.update(files=m["files"][:-2])),
        "newer format": lambda f: resign(f, lambda m: m.update(format=99)),
        "unknown key": lambda f: resign(f, lambda m: m.update(extra=1)),
        "token file missing": lambda f: (f / "tokens-00001.bin").unlink(),
        "index file empty": lambda f: (f / stale).write_bytes(b""),
    }


def shift(path: Path) -> None:
    ends = np.fromfile(path, "<i8")
    ends[0] += 1
    ends.tofile(path)


READER = """
import os, sys
from pathlib import Path
import numpy as np
from heddle.core import DamageError
from heddle.data.rows import Loader, PackedRows
from heddle.data.shards import Shards
folder, size, workers, mapped = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "map"
shards = Shards.open(folder)
tokens = np.memmap(folder / "tokens-00000.bin", "<u2", "r")
path = folder / "tokens-00000.bin"
batches = iter(Loader(PackedRows(length=64).build(shards, 0), 8, workers=workers))
next(batches)
os.truncate(path, size)
if mapped:
    print(tokens.sum())
try:
    for _ in range(200):
        next(batches)
except DamageError as error:
    print("refused:", error)
"""


def shrunk(folder: Path, size: int, workers: int, how: str = "loader") -> subprocess.CompletedProcess[str]:
    """Run a reader whose token file is cut behind its back."""
    command = [sys.executable, "-c", READER, str(folder), str(size), str(workers), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def trial(tmp_path: Path, flips: int, cuts: int, shrinks: int) -> None:
    good, other, spare = write(tmp_path / "good", 0), write(tmp_path / "other", 1), tmp_path / "spare"
    Shards.open(good)
    rng = np.random.default_rng(11)
    files = sorted(good.iterdir())
    detected = []
    for i in range(flips):
        path = files[i % len(files)]
        bit = int(rng.integers(path.stat().st_size * 8))
        detected.append(damaged(good, spare, lambda f, n=path.name, b=bit: flip(f / n, b)))
    for i in range(cuts):
        path = files[i % len(files)]
        size = int(rng.integers(path.stat().st_size))
        detected.append(damaged(good, spare, lambda f, n=path.name, s=size: os.truncate(f / n, s)))
    for name, damage in mix_ups(other).items():
        assert damaged(good, spare, damage), name
        detected.append(True)
    Shards.open(good)
    killed, told = 0, 0
    for i in range(shrinks):
        shutil.rmtree(spare, ignore_errors=True)
        shutil.copytree(good, spare)
        result = shrunk(spare, int(rng.integers(1000)), workers=i % 3)
        killed += result.returncode == -signal.SIGBUS
        told += result.returncode == 0 and result.stdout.startswith("refused:")
    print(f"R11: {sum(detected)}/{len(detected)} refused; shrunk while open: {told}/{shrinks} refused, {killed} SIGBUS")
    assert all(detected) and told == shrinks and killed == 0


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    trial(tmp_path, flips=60, cuts=30, shrinks=1)


@pytest.mark.full
def test_damaged_shards_are_refused_in_full(tmp_path: Path) -> None:
    trial(tmp_path, flips=200, cuts=100, shrinks=9)


@pytest.mark.full
def test_a_memory_map_would_have_been_killed(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with ShardWriter(big, vocab=1000, end=END, fingerprint="") as writer:
        writer.add(np.zeros(1 << 20, np.int64), bytes=1, words=1)
    result = shrunk(big, 0, workers=0, how="map")
    print(f"R11 control: a memory map ends with signal {-result.returncode}")
    assert result.returncode == -signal.SIGBUS
