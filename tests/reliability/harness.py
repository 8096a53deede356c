"""Harness: a tiny run, a nursery of trainers that are killed, signalled or starved, and what two runs must share.

Run as a script, this file is the nursery: it imports once, then forks trainers, one for each rank of each job, that go
through the command line's own door. A blow falls on them from outside after some time, or from inside at a counted
call of some place, which is exact where time is not.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reliability.traps import Blow, Trap

from heddle.core import encode, override
from heddle.core.system import to_yaml
from heddle.data.rows import PackedRows
from heddle.data.sources import corpus_for
from heddle.models.presets import PresetConfig
from heddle.text.tokenizers import ByteTokenizer
from heddle.training import EveryConfig, HardwareConfig, RunConfig, RunEnvironment, TrainingConfig, set_up
from heddle.training.loop import Trainer
from heddle.training.optimizers import AdamWConfig, ConstantConfig, MovingAverageConfig, MuonConfig

PATIENCE = 60.0  # seconds until a job that hangs is given up


# --- a tiny run -------------------------------------------------------------------------------------------------------


def write_text(path: Path, lines: int = 60, seed: int = 0) -> Path:
    """Write some kilobytes of text."""
    words = ["the", "a", "cat", "dog", "sat", "on", "mat", "runs", "and", "sees", "then", "big", "small", "red", "tree"]
    draw = random.Random(seed)
    path.write_text("\n".join(" ".join(draw.choices(words, k=8)) + "." for _ in range(lines)) + "\n")
    return path


def tiny(text: Path, **changes: Any) -> RunConfig:
    """Return a run of a fraction of a second with all that makes resuming hard: dropout, shuffling, several
    micro-batches, a moving average, several epochs. Changes are dotted paths with `__` for the dot."""
    config = RunConfig(
        name="tiny",
        model=PresetConfig(name="first", width=32, layers=1, heads=2, dropout=0.1),
        tokenizer=ByteTokenizer(),
        data=corpus_for(str(text)),
        rows=PackedRows(length=32),
        training=TrainingConfig(
            steps=30,
            batch=4,
            micro_batch=2,
            average=MovingAverageConfig(decay=0.9),
            optimizer=AdamWConfig(learning_rate=3e-3),
            schedule=ConstantConfig(warmup=3),
        ),
        every=EveryConfig(log=1, validate=10, save=5, sample=1000),
        hardware=HardwareConfig(device="cpu", workers=0),
    )
    for path, value in changes.items():
        config = override(config, path.replace("__", "."), value)
    return config


def trainer_for(config: RunConfig, folder: Path) -> Trainer:
    """Set a run up in this process, or go on with it, as the command line does."""
    folder.mkdir(parents=True, exist_ok=True)
    return set_up(config, RunEnvironment(folder))


def write_config(path: Path, config: RunConfig) -> Path:
    """Write a config as a file for `heddle train`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_yaml(encode(config)))
    return path


# --- what two runs must share -----------------------------------------------------------------------------------------


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics without what depends on the clock."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last one may be cut short
            values = json.loads(line)
            found.append({k: v for k, v in values.items() if k not in ("tokens_per_second", "mfu")})
    return found


def last_step(run: Path) -> int:
    """Return the last step that a run told of."""
    return max((line["step"] for line in metrics(run)), default=0)


def final(run: Path) -> dict[str, str]:
    """Return a fingerprint of each file of a run's last checkpoint: weights, optimizer, average, guard, state."""
    newest = max((run / "checkpoints").glob("step-*"))
    kept = [p for p in newest.iterdir() if p.suffix == ".safetensors" or p.name == "state.json"]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in sorted(kept)}


def differences(run: Path, reference: Path) -> list[str]:
    """Say in what two finished runs differ: any file of the last checkpoint, or any line of the metrics."""
    ours, theirs = final(run), final(reference)
    found = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    for which in ("loss", "validation_loss"):
        mine, wanted = ([x for x in metrics(r) if which in x] for r in (run, reference))
        if mine != wanted:
            step = next((a["step"] for a, b in zip(mine, wanted, strict=False) if a != b), "count")
            found.append(f"{which} at {step}")
    return found


# --- jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How one process ended."""

    code: int  # minus the signal's number if it was killed
    start: int | None  # the step at which it began to train
    seconds: float | None  # from the blow, or the second one, to the end
    said: str  # on stderr
    rows: list[str]  # where they were watched: number and fingerprint of each row that it was trained on, in order


@dataclass
class Nursery:
    """Sends jobs to the process that forks trainers."""

    process: "subprocess.Popen[str]"
    jobs: int = field(default=0)

    def run(self, root: Path, target: str, words: list[str] | None = None, **more: Any) -> list[Outcome]:
        """Run `heddle train TARGET WORDS` in a folder, on each of `world` ranks, under a blow, with rows watched."""
        blow, world = more.get("blow"), more.get("world", 1)
        job = {"root": str(root), "words": [target, *(words or [])], "world": world, "watch": more.get("watch", False)}
        assert self.process.stdin is not None and self.process.stdout is not None
        root.mkdir(parents=True, exist_ok=True)
        self.process.stdin.write(json.dumps(job | {"blow": None if blow is None else asdict(blow)}) + "\n")
        self.process.stdin.flush()
        return [Outcome(**one) for one in json.loads(self.process.stdout.readline())]

    def one(self, root: Path, target: str, blow: Blow | None = None, words: list[str] | None = None) -> Outcome:
        """Run a job of a single process."""
        return self.run(root, target, words, blow=blow)[0]


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    """Start the process that forks trainers, and end it."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": paths}
    command = [sys.executable, __file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Nursery(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


# --- inside the nursery -----------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork trainers for each job on stdin."""
    from heddle.cli.main import main

    _warm_up()
    for line in sys.stdin:
        job = json.loads(line)
        port = _free_port() if job["world"] > 1 else 0
        children = [_fork(main, job, rank, port) for rank in range(job["world"])]
        print(json.dumps(_wait(children, job)), flush=True)


def _warm_up() -> None:
    """Do once what every trainer would do at its start; no backward pass, whose threads a fork would lose."""
    import torch
    import torch._dynamo

    from heddle.core.system import choose_hardware, peak_flops
    from heddle.models.presets import build
    from heddle.tasks.generation import training_samples

    training_samples.TOKENS = 4
    peak_flops(choose_hardware("cpu"))
    model = build("first", width=32, layers=1, heads=2, vocab=257, context=32)
    model(torch.zeros(2, 32, dtype=torch.long))
    for optimizer in (AdamWConfig().build(model), MuonConfig().build(model)):
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step(torch.tensor(False))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _fork(main: Any, job: dict[str, Any], rank: int, port: int) -> tuple[int, int, Path]:
    """Fork a trainer; return its process number, a pipe that it tells through, and where its stderr goes."""
    reading, writing = os.pipe()
    stderr = Path(job["root"]) / f"stderr-{rank}"
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading, stderr
    code = 70
    try:
        os.chdir(job["root"])
        handles = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in (f"stdout-{rank}", stderr.name)]
        os.dup2(handles[0], 1)
        os.dup2(handles[1], 2)
        if job["world"] > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job["world"])}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        blow = None if job["blow"] is None else Blow(**job["blow"])
        trap = Trap(writing, blow if blow is not None and blow.rank == rank else None)
        trap.arm()
        if job["watch"]:
            trap.watch()
        code = main(["train", *job["words"]])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(children: list[tuple[int, int, Path]], job: dict[str, Any]) -> list[dict[str, Any]]:
    """Wait for all trainers, striking from outside where the blow is a matter of time."""
    began, blow = time.monotonic(), job["blow"]
    pending, ended, struck = {c[0] for c in children}, {}, None
    while pending:
        now = time.monotonic()
        if blow is not None and blow["place"] == "time" and struck is None and now - began >= blow["number"]:
            struck = now
            os.kill(children[blow["rank"]][0], blow["signal"])
        for child in [p for p in pending if now - began > PATIENCE]:
            os.kill(child, signal.SIGKILL)
        for child in list(pending):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                pending.remove(child)
                ended[child] = (os.waitstatus_to_exitcode(status), time.monotonic())
        time.sleep(0.001)
    return [_outcome(*ended[child], told, stderr, struck) for child, told, stderr in children]


def _outcome(code: int, end: float, told: int, stderr: Path, struck: float | None) -> dict[str, Any]:
    with os.fdopen(told) as pipe:
        words = [json.loads(line) for line in pipe]
    start = next((w["start"] for w in words if "start" in w), None)
    sent = [w["sent"] for w in words if "sent" in w] or ([struck] if struck is not None else [])
    said = stderr.read_text(errors="replace") if stderr.exists() else ""
    rows = [row for w in words if "rows" in w for row in w["rows"]]
    return {"code": code, "start": start, "seconds": end - sent[-1] if sent else None, "said": said, "rows": rows}


if __name__ == "__main__":
    serve()
