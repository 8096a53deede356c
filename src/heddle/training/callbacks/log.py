"""Logs: metrics.jsonl for programs, progress for people, TensorBoard scalars, and samples that the model writes."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from heddle.core import EnvironmentFault, MissingExtra
from heddle.core.system import open_to_append, peak_flops, replacing
from heddle.models.networks import Model
from heddle.training.loop import Callback, Report, Reporter, Trainer

SampleWriter = Callable[[Model], str]


class Metrics:
    """A file of JSON lines; a resumed run first drops the lines past its step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def begin(self, step: int) -> None:
        """Keep the lines up to a step, and append after them."""
        kept = [line + "\n" for line in self._lines() if self._step(line) <= step]
        with self._faults_named():
            with replacing(self.path) as file:
                file.write("".join(kept).encode())
            self._file = open_to_append(self.path)

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        return self.path.read_text(encoding="utf-8", errors="replace").splitlines()

    def last_save(self) -> str | None:
        """Return the last checkpoint that the lines tell of; None: no save was finished."""
        for line in reversed(self._lines()):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # another line, or one cut short
                return str(json.loads(line)["checkpoint"])
        return None

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
            with contextlib.suppress(OSError):  # each line was flushed, or its error raised
                self._file.close()
            self._file = None


class Log(Callback):
    """Every `every` steps: loss, gradient norm, learning rate, tokens per second, MFU and skipped steps."""

    def __init__(self, metrics: Metrics, reporter: Reporter, every: int, flops_per_token: int) -> None:
        self.metrics, self.reporter, self.every, self.flops = metrics, reporter, every, flops_per_token
        self.tokens = 0

    def before_fit(self, trainer: Trainer) -> None:
        self.metrics.begin(trainer.step)
        self.peak = peak_flops(trainer.hardware) * trainer.take_step.processes.world
        self.reporter.begin(trainer.step, trainer.steps)
        self.since = time.perf_counter()

    def after_step(self, trainer: Trainer, report: Report) -> None:
        self.tokens += report.tokens
        if trainer.step % self.every and trainer.step != trainer.steps and trainer.stop is None:
            return
        loss, norm = float(report.loss), float(report.norm)  # waits for the device
        now = time.perf_counter()
        speed = self.tokens / max(1e-9, now - self.since)
        self.since, self.tokens = now, 0
        mfu = speed * self.flops / self.peak
        self.metrics.write(
            step=trainer.step,
            loss=_finite(loss),
            norm=_finite(norm),
            learning_rate=report.learning_rate,
            tokens_per_second=round(speed, 1),
            mfu=round(mfu, 4),
            skipped=int(trainer.take_step.guard.skipped),
            **{name: round(float(value), 5) for name, value in report.metrics.items()},
        )
        numbers = f"loss {loss:.4f}  {speed:,.0f} tokens/s  MFU {mfu:.1%}"
        milestone = trainer.step % (10 * self.every) == 0 or trainer.step == trainer.steps
        self.reporter.progress(trainer.step, trainer.steps, numbers, milestone)

    def after_fit(self, trainer: Trainer) -> None:
        self.reporter.end()
        self.metrics.close()


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold, or None."""
    return value if value == value and abs(value) != float("inf") else None


class TensorBoard(Callback):
    """Write loss, norm, rate and held-out loss as TensorBoard scalars."""

    def __init__(self, folder: Path, every: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "track", "tensorboard=true") from None
        self.writer = SummaryWriter(str(folder))
        self.every = every

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step % self.every and trainer.metric is None:
            return
        values = {"loss": float(report.loss), "norm": float(report.norm), "learning_rate": report.learning_rate}
        if trainer.metric is not None:
            values["validation_loss"] = trainer.metric
        for name, value in values.items():
            self.writer.add_scalar(name, value, trainer.step)

    def after_fit(self, trainer: Trainer) -> None:
        self.writer.close()


class Sample(Callback):
    """Append samples to samples.txt and show the last one."""

    def __init__(self, write: SampleWriter, path: Path, reporter: Reporter, every: int) -> None:
        self.write, self.path, self.reporter, self.every = write, path, reporter, every

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step % self.every and trainer.step != trainer.steps:
            return
        mode = trainer.model.training
        trainer.model.eval()
        text = self.write(trainer.model)
        trainer.model.train(mode)
        try:
            with open_to_append(self.path) as file:
                file.write(f"--- step {trainer.step}\n{text}\n")
        except OSError as error:
            raise EnvironmentFault(f"{self.path}: cannot be written: {error.strerror}") from error
        self.reporter.message(f"sample at step {trainer.step}:\n{text}", "sample")
