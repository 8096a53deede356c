"""R12: loaders killed again and again, resumed from one integer, hand out every sample exactly once and in order.

Run as a script, this file is the victim's nursery: it imports once, then forks one process for each job.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from heddle.data.rows import Batch, Loader, PackedRows, RowPlan
from heddle.data.shards import Shards, ShardWriter

BATCH, EPOCHS = 4, 2


def build(folder: Path) -> RowPlan:
    return PackedRows(length=16).build(Shards.open(folder), seed=7)


def digest(batch: Batch, row: int) -> str:
    """Return a fingerprint of everything that one row shows to a model."""
    assert batch.documents is not None and batch.positions is not None
    fields = (batch.inputs, batch.targets, batch.weights, batch.documents, batch.positions)
    return hashlib.sha256(b"".join(field[row].numpy().tobytes() for field in fields)).hexdigest()[:16]


# --- the victim -------------------------------------------------------------------------------------------------------


def consume(plan: RowPlan, job: dict) -> None:
    """Log each batch with the integer to resume from; die by SIGKILL at the wanted batch, before or after its log."""
    loader = Loader(
        plan, BATCH, start=job["start"], rank=job["rank"], world=job["world"], workers=job["workers"], prefetch=3
    )
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for turn, batch in enumerate(loader):
        if turn == job["die"] and not job["logged"]:
            os.kill(os.getpid(), signal.SIGKILL)
        rows = [[number, digest(batch, i)] for i, number in enumerate(batch.rows.tolist())]
        os.write(log, (json.dumps([loader.consumed, rows]) + "\n").encode())
        if turn == job["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if loader.consumed >= job["stop"]:
            return


def serve(folder: Path) -> None:
    plan = build(folder)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                consume(plan, json.loads(line))
                code = 0
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


# --- the trial --------------------------------------------------------------------------------------------------------


@contextmanager
def nursery(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run(process: "subprocess.Popen[str]", job: dict) -> int:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def survive(process: "subprocess.Popen[str]", folder: Path, kills: int, workers: int, world: int, stop: int) -> list:
    """Go through the epochs with kills on the way; return what was handed out, as a checkpoint would see it."""
    rng = np.random.default_rng([workers, world])
    start, kept = 0, []
    for life in range(kills + 1):
        left, lives = (stop - start) // BATCH, kills - life
        die = int(rng.integers(0, max(1, left // (lives + 1)))) if lives else -1
        ranks = []
        for rank in range(world):
            log = folder / f"log-{workers}-{world}-{life}-{rank}"
            late = rank and int(rng.integers(2))  # the ranks of a dying job do not stop at the same step
            where = {"start": start, "stop": stop, "rank": rank, "world": world, "workers": workers, "log": str(log)}
            code = run(process, where | {"die": die + late if lives else -1, "logged": bool(rng.integers(2))})
            assert code in ((0, -signal.SIGKILL) if lives else (0,))
            ranks.append([json.loads(line) for line in log.read_text().splitlines()])
        done = min(len(rank) for rank in ranks)  # the last step that every rank finished is the checkpoint
        for step in range(done):
            kept += [row for rank in ranks for row in rank[step][1]]
        start = ranks[0][done - 1][0] if done else start
        assert start < stop or life == kills, "all kills must fall within the run"
    return kept


def trial(tmp_path: Path, kills: int, workers: list[int], worlds: list[int]) -> None:
    rng = np.random.default_rng(0)
    with ShardWriter(tmp_path / "shards", vocab=500, end=0, fingerprint="") as writer:
        for size in rng.integers(1, 60, 120):
            writer.add(rng.integers(1, 500, size), bytes=1, words=1)
    plan = build(tmp_path / "shards")
    stop = -(-EPOCHS * plan.rows_per_epoch // BATCH) * BATCH
    whole = []
    for batch in Loader(plan, BATCH):
        whole += [[number, digest(batch, i)] for i, number in enumerate(batch.rows.tolist())]
        if len(whole) >= stop:
            break
    repeated = missing = disorder = deaths = 0
    with nursery(tmp_path / "shards") as process:
        for count in workers:
            for world in worlds:
                kept = survive(process, tmp_path, kills, count, world, stop)
                numbers = [number for number, _ in kept]
                repeated += len(numbers) - len(set(numbers))
                missing += len(set(range(stop)) - set(numbers))
                disorder += kept != whole
                deaths += kills
    runs = len(workers) * len(worlds)
    print(
        f"R12: {deaths} kills in {runs} runs of {stop} rows: "
        f"{repeated} repeated, {missing} missing, order equal {runs - disorder}/{runs}"
    )
    assert (repeated, missing, disorder) == (0, 0, 0)


def test_killed_loaders_lose_nothing(tmp_path: Path) -> None:
    trial(tmp_path, kills=5, workers=[0, 2], worlds=[1, 2])


@pytest.mark.full
def test_killed_loaders_lose_nothing_in_full(tmp_path: Path) -> None:
    trial(tmp_path, kills=30, workers=[0, 1, 2], worlds=[1, 2])


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
