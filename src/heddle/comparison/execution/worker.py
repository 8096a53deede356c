"""The worker of a comparison: a process that trains runs one after the other, so that a variant is compiled once.

It reads the paths of jobs from its standard input, a line each, and writes each result beside its job. When the input
ends it leaves: at once if it is training, because then the process that started it is gone.
"""

import contextlib
import gc
import json
import math
import os
import queue
import resource
import shutil
import statistics
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from heddle.comparison.execution.ledger import Result, Status
from heddle.comparison.execution.training_slots import TOO_LATE, UNLIMITED, TooLate, TrainingSlot, TrainingSlots
from heddle.core import HeddleError, decode, fields_of, first_line, user_code
from heddle.core.system import lock_folder, parse_json, read_text, write_json, write_text
from heddle.models import active_parameters, build_meta, count_parameters, training_flops
from heddle.training import ResolvedRun, RunConfig, train_run
from heddle.training.callbacks import Diverged, Validate
from heddle.training.loop import Callback, Report, Trainer

JOB, RESULT, LOG = "job.json", "result.json", "log.txt"
LEFT = 75  # exit code of a worker whose parent is gone
WARM, PROBED = 4, 28  # steps: from the first to the second a run sees how long one takes


@dataclass(frozen=True)
class Job:
    """One run for a worker: the config, where it trains, and what its result must name."""

    folder: Path
    config: dict[str, Any]
    names: dict[str, Any]  # suite, variant, seed, arm, diff, hashes, key
    use: tuple[str, ...] = ()
    cost: float = 0.0  # FLOPs
    processes: int = 1  # that train side by side, or compile while others train
    slots: TrainingSlots = UNLIMITED

    @property
    def training_at_once(self) -> int:
        """Return how many runs train at the same time."""
        return self.slots.at_once or self.processes

    @property
    def run(self) -> Path:
        """Return the folder of the run itself."""
        return self.folder / str(self.config["name"])

    def write(self) -> Path:
        """Write the job into its folder; return the file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / JOB
        plain = {"folder": str(self.folder), "use": list(self.use), "slots": asdict(self.slots)}
        write_json(path, vars(self) | plain)
        return path

    @classmethod
    def read(cls, path: Path) -> "Job":
        """Read a job that was written."""
        plain = parse_json(read_text(path), str(path))
        typed = {"folder": Path(plain["folder"]), "use": tuple(plain["use"]), "slots": TrainingSlots(**plain["slots"])}
        return cls(**plain | typed)

    def result(self) -> Result | None:
        """Return the result that a worker has written, if it has."""
        try:
            found = Result.parse(json.loads((self.folder / RESULT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return found if found.key == self.names["key"] else None


class Measure(Callback):
    """Times the steps, and measures the loss of the test rows once, when all steps are done.

    The first step is compiled at once; for the others a run waits for its slot, and leaves if it would end too late.
    """

    def __init__(self, slots: TrainingSlots) -> None:
        self.slot = TrainingSlot(slots)
        self.laps: list[float] = []
        self.last = self.began = 0.0
        self.pace: float | None = None  # seconds of a step, on a GPU, which is waited for at both ends
        self.test: float | None = None
        self.test_bits: float | None = None  # per byte of the test rows

    def before_fit(self, trainer: Trainer) -> None:
        self.last = time.perf_counter()

    def after_step(self, trainer: Trainer, report: Report) -> None:
        now = time.perf_counter()
        self.laps.append(now - self.last)
        self.slot.take(lambda: trainer.signals.caught is not None)
        if torch.cuda.is_available() and len(self.laps) in (WARM, PROBED):
            torch.cuda.synchronize()  # it lags behind, and more so where graphs are replayed
            now = time.perf_counter()
            self.pace = (now - self.began) / (PROBED - WARM) if len(self.laps) == PROBED else None
            self.began = now
        if len(self.laps) == PROBED:
            step = statistics.median(self.laps[1:]) if self.pace is None else self.pace
            self.slot.check(step * (trainer.steps - trainer.step))
        self.last = time.perf_counter()

    def after_fit(self, trainer: Trainer) -> None:
        try:
            if trainer.step >= trainer.steps:
                self._measure_test_rows(trainer)
        finally:
            self.slot.release()

    def _measure_test_rows(self, trainer: Trainer) -> None:
        validate = next(one for one in trainer.callbacks if isinstance(one, Validate))
        rows = validate.held_out.following()
        found = None if rows is None else validate.measure(trainer, rows)
        if rows is not None and found is not None:
            self.test = found.loss
            self.test_bits = rows.bits_per_byte(found.loss) if validate.objective.gives_bits_per_byte else None

    def step_seconds(self) -> float | None:
        """Return the seconds of a step; in the median of laps compiling and validations are rare enough."""
        return self.pace or (statistics.median(self.laps) if self.laps else None)


@dataclass
class Outcome:
    """How a run ended."""

    status: Status
    reason: str
    measured: Measure


def work(job: Job) -> Result:
    """Train the run of a job, or go on with it; return what it gave."""
    user_code.use_all(job.use)
    config = decode(RunConfig, job.config)
    started = time.perf_counter()
    outcome = _train(config, job)
    return _result(job, config, outcome, time.perf_counter() - started - outcome.measured.slot.waited)


def _train(config: RunConfig, job: Job) -> Outcome:
    """Train in the job's folder; a run that was begun goes on from its newest checkpoint."""
    checkpoints, measured = job.run / "checkpoints", Measure(job.slots)
    begun = checkpoints.is_dir() and any(checkpoints.iterdir())
    if not begun:
        shutil.rmtree(job.run, ignore_errors=True)
    run = ResolvedRun(config, job.run, config) if begun else ResolvedRun(config)
    try:
        done = train_run(run, job.folder, callbacks=[measured])
    except TooLate:
        raise SystemExit(TOO_LATE) from None
    except Diverged as error:
        return Outcome("diverged", first_line(error), measured)
    except HeddleError as error:
        return Outcome("failed", first_line(error), measured)
    except Exception as error:  # a variant that cannot be trained is a row of the table, not the end of it
        traceback.print_exc()
        return Outcome("failed", f"{type(error).__name__}: {first_line(error)}", measured)
    if done.exit_code or done.stopped is not None:
        raise SystemExit(done.exit_code or 1)  # a signal: it is saved, not finished
    return Outcome("done", "", measured)


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in read_text(path).splitlines()] if path.exists() else []


def _result(job: Job, config: RunConfig, outcome: Outcome, seconds: float) -> Result:
    lines, steps = _metrics(job.run), config.training.steps
    curve = tuple((line["step"], line["validation_loss"]) for line in lines if _finite(line.get("validation_loss")))
    last: dict[str, Any] = next((line for line in reversed(lines) if "validation_loss" in line), {})
    ended = outcome.status == "done" and last.get("step") == steps and _finite(last["validation_loss"])
    test = outcome.measured.test
    lost = outcome.status == "done" and (not ended or (test is not None and not _finite(test)))
    model = build_meta(config.model)
    tokens = config.training.batch * config.rows.max_length
    step = outcome.measured.step_seconds()
    timed = step is not None and not (torch.cuda.is_available() and job.training_at_once > 1)
    return Result(
        **job.names,
        status="diverged" if lost else outcome.status,
        reason="the held-out loss is not a number" if lost else outcome.reason,
        loss_valid=float(last["validation_loss"]) if ended and not lost else None,
        loss_test=test if ended and not lost else None,
        bits_per_byte=last.get("bits_per_byte") if ended and not lost else None,
        bits_per_byte_test=outcome.measured.test_bits if ended and not lost else None,
        params=count_parameters(model),
        active_params=active_parameters(model),
        flops_token=training_flops(model, config.rows.max_length),
        steps=steps,
        tokens=steps * tokens,
        learning_rate=fields_of(config.training.optimizer).get("learning_rate"),
        optimizer=str(config.training.optimizer.kind),
        gpu_s=round(steps * step, 3) if timed and step is not None else None,
        tokens_s=round(tokens / step, 1) if timed and step is not None else None,
        peak_gib=round(peak_gib(), 3),
        guard_skips=int(max((line.get("skipped", 0) for line in lines), default=0)),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        torch=torch.__version__,
        processes=job.training_at_once,
        wall_s=round(seconds, 2),
        curve=curve,
    )


def _finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def peak_gib() -> float:
    """Return the most memory that was held: of the GPU, or of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _forget() -> None:
    """Give back the memory of the last run; compiled code stays."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class _Inbox:
    """The lines of standard input, read in a thread, so that its end is noticed in the middle of a run."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in sys.stdin:
                self.lines.put(line.strip())
        if self.lines.unfinished_tasks:
            os._exit(LEFT)
        self.lines.put(None)


def _print_to(path: Path) -> None:
    """Let all that this process prints go to a file."""
    with path.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def main() -> None:
    """Do the jobs that come; after a failure leave, since the device may no longer be sound."""
    inbox = _Inbox()
    while (line := inbox.lines.get()) is not None:
        job = Job.read(Path(line))
        _print_to(job.folder / LOG)
        with lock_folder(job.folder):  # another worker may be leaving it
            result = work(job)
            write_text(job.folder / RESULT, result.line())
        inbox.lines.task_done()
        if result.status == "failed":
            return
        _forget()
