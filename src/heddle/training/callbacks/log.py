"""Log: metrics.jsonl for programs, a progress bar for people, with the same numbers."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from heddle.core import EnvironmentFault
from heddle.core.system import peak_flops, replacing
from heddle.training.loop import Callback, Report, Trainer


class Metrics:
    """A file of JSON lines; a resumed run first drops the lines past its step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def begin(self, step: int) -> None:
        """Keep the lines up to a step, and go on after them."""
        kept = [line + "\n" for line in self._lines() if self._step(line) <= step]
        with self._faults_named():
            with replacing(self.path) as file:
                file.write("".join(kept).encode())
            self._file = self.path.open("a", encoding="utf-8")

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        return self.path.read_text(encoding="utf-8", errors="replace").splitlines()

    @staticmethod
    def _step(line: str) -> float:
        try:
            return float(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            return float("inf")  # a line cut short by a crash

    def write(self, **values: Any) -> None:
        """Add a line."""
        if self._file is None:
            return
        with self._faults_named():
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    @contextlib.contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EnvironmentFault(f"{self.path}: cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # each line was flushed, or its fault told
                self._file.close()
            self._file = None


class Log(Callback):
    """Every so many steps: loss, gradient norm, rate, tokens per second, MFU and skipped steps."""

    def __init__(self, metrics: Metrics, console: Console, every: int, flops_per_token: int) -> None:
        self.metrics, self.console, self.every, self.flops = metrics, console, every, flops_per_token
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.tokens = 0

    def before_fit(self, trainer: Trainer) -> None:
        self.metrics.begin(trainer.step)
        self.peak = peak_flops(trainer.hardware) * trainer.take_step.processes.world
        self.task = self.bar.add_task("train", total=trainer.steps, completed=trainer.step, numbers="")
        self.bar.start()
        self.since = time.perf_counter()

    def after_step(self, trainer: Trainer, report: Report) -> None:
        self.tokens += report.tokens
        if trainer.step % self.every and trainer.step != trainer.steps and trainer.stop is None:
            return
        loss, norm = float(report.loss), float(report.norm)  # waits for the device
        now = time.perf_counter()
        speed = self.tokens / max(1e-9, now - self.since)
        self.since, self.tokens = now, 0
        guard = trainer.take_step.guard
        self.metrics.write(
            step=trainer.step,
            loss=_finite(loss),
            norm=_finite(norm),
            rate=report.rate,
            tokens_per_second=round(speed, 1),
            mfu=round(speed * self.flops / self.peak, 4),
            skipped=int(guard.skipped),
            **{name: round(float(value), 5) for name, value in report.metrics.items()},
        )
        mfu = speed * self.flops / self.peak
        numbers = f"loss {loss:.4f}  {speed:,.0f} tokens/s  MFU {mfu:.1%}"
        self.bar.update(self.task, completed=trainer.step, numbers=numbers)
        if not self.console.is_terminal and (trainer.step % (10 * self.every) == 0 or trainer.step == trainer.steps):
            self.console.print(f"step {trainer.step}/{trainer.steps}  {numbers}", highlight=False)

    def after_fit(self, trainer: Trainer) -> None:
        self.bar.stop()
        self.metrics.close()


def _finite(value: float) -> float | None:
    """JSON has no word for what is not a number."""
    return value if value == value and abs(value) != float("inf") else None
