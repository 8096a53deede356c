"""Traps: what befalls a trainer from inside, at a counted call of some place: a signal, or memory that runs out."""

import hashlib
import json
import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from heddle.data.rows import Batch
from heddle.training.loop import Report, Trainer

Place = Literal["time", "disk", "micro", "validate", "row"]


@dataclass(frozen=True)
class Blow:
    """What befalls a trainer: a signal, or a memory limit, at a counted call of a place or after some seconds."""

    place: Place
    number: float
    signal: int = signal.SIGKILL
    memory: bool = False
    again: float | None = None  # seconds after which the same signal is sent once more, by a trainer busy till then
    rank: int = 0


class Trap:
    """Counts the calls of a place inside a trainer and strikes at one of them."""

    def __init__(self, pipe: int, blow: Blow | None) -> None:
        self.pipe, self.blow, self.calls = pipe, blow, 0

    def tell(self, **words: Any) -> None:
        """Send a line to the nursery."""
        os.write(self.pipe, (json.dumps(words) + "\n").encode())

    def arm(self) -> None:
        """Put the counting calls in their places."""
        from heddle.checkpoints.store import store
        from heddle.data.rows.packed import PackedPlan
        from heddle.objectives import NextTokenConfig
        from heddle.training.loop import Step

        real_fit, trap = Trainer.fit, self

        def fit(trainer: Trainer) -> None:
            trap.tell(start=trainer.step)
            real_fit(trainer)

        Trainer.fit = fit  # type: ignore[method-assign]
        if self.blow is None:
            return
        if self.blow.place == "disk":
            store.LocalDisk = lambda: TrappedDisk(self)  # type: ignore[assignment,misc]
        elif self.blow.place == "micro":
            Step._forward = self.before(Step._forward)  # type: ignore[method-assign]
        elif self.blow.place == "row":
            PackedPlan.row = self.before(PackedPlan.row)  # type: ignore[method-assign]
        elif self.blow.place == "validate":
            real_loss = NextTokenConfig.__call__

            def loss(objective: Any, model: Any, *rest: Any) -> Any:
                if not model.training:
                    self.count()
                return real_loss(objective, model, *rest)

            NextTokenConfig.__call__ = loss  # type: ignore[method-assign]

    def watch(self) -> None:
        """Tell of every row that is trained on; a pipe holds some thousand rows until it is read."""
        real, trap = Trainer._train_step, self

        def one(trainer: Trainer, batch: Batch) -> Report:
            trap.tell(rows=[f"{number} {digest(batch, i)}" for i, number in enumerate(batch.rows.tolist())])
            return real(trainer, batch)

        Trainer._train_step = one  # type: ignore[method-assign]

    def before(self, real: Any) -> Any:
        """Return a function that counts, then does what the real one does."""

        def call(*arguments: Any) -> Any:
            self.count()
            return real(*arguments)

        return call

    def count(self) -> None:
        """Count a call, and strike at the right one."""
        assert self.blow is not None
        self.calls += 1
        if self.calls != self.blow.number:
            return
        if self.blow.memory:
            self.starve()
            return
        self.tell(sent=time.monotonic())
        os.kill(os.getpid(), self.blow.signal)
        if self.blow.again is not None:
            time.sleep(self.blow.again)
            self.tell(sent=time.monotonic())
            os.kill(os.getpid(), self.blow.signal)
            time.sleep(10)

    def starve(self) -> None:
        """Limit memory to a little more than what is held, and ask torch for much more."""
        import torch

        self.tell(sent=time.monotonic())
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (32 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
        torch.empty(1 << 28, dtype=torch.uint8).fill_(1)


def digest(batch: Batch, row: int) -> str:
    """Return a fingerprint of what one row shows to a model."""
    fields = (batch.inputs, batch.targets, batch.weights, batch.documents, batch.positions)
    shown = [field[row].numpy().tobytes() for field in fields if field is not None]
    return hashlib.sha256(b"".join(shown)).hexdigest()[:8]


class TrappedDisk:
    """A disk whose every call is counted; struck in a write, it leaves half of the bytes."""

    def __init__(self, trap: Trap) -> None:
        from heddle.checkpoints.store.disk import LocalDisk

        self.trap, self.real = trap, LocalDisk()

    def write(self, file: BinaryIO, data: memoryview) -> None:
        self.real.write(file, data[: len(data) // 2])
        file.flush()
        self.trap.count()
        self.real.write(file, data[len(data) // 2 :])

    def rename(self, old: Path, new: Path) -> None:
        self.trap.count()
        self.real.rename(old, new)
        self.trap.count()

    def make(self, folder: Path) -> None:
        self.trap.count()
        self.real.make(folder)

    def create(self, path: Path) -> BinaryIO:
        self.trap.count()
        return self.real.create(path)

    def sync(self, file: BinaryIO) -> None:
        self.trap.count()
        self.real.sync(file)

    def sync_folder(self, folder: Path) -> None:
        self.trap.count()
        self.real.sync_folder(folder)

    def remove(self, folder: Path) -> None:
        self.trap.count()
        self.real.remove(folder)
