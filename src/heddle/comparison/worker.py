"""The worker of a comparison: trains one run in a process of its own, and writes what it gave.

    python -m heddle.comparison.worker SPEC.json

A process for each run: one that crashes or is killed takes no other with it. The run resumes from its checkpoint.
"""

import json
import math
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heddle.comparison.ledger import Result, Status
from heddle.core import HeddleError, decode, fields_of, first_line, user_code
from heddle.core.system import parse_json, read_text, write_json, write_text
from heddle.models import active_parameters, build_meta, count_parameters, training_flops
from heddle.training import ResolvedRun, RunConfig, train_run
from heddle.training.callbacks import Diverged


@dataclass(frozen=True)
class Job:
    """One run for a worker: the config, where it trains, and what its result must name."""

    folder: Path
    config: dict[str, Any]
    names: dict[str, Any]  # suite, variant, key, seed, arm, changes, hashes
    use: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write the job to a file."""
        plain = {"folder": str(self.folder), "config": self.config, "names": self.names, "use": list(self.use)}
        write_json(path, plain)

    @classmethod
    def read(cls, path: Path) -> "Job":
        """Read a job that was written."""
        plain = parse_json(read_text(path), str(path))
        return cls(Path(plain["folder"]), plain["config"], plain["names"], tuple(plain["use"]))


def work(job: Job) -> Result:
    """Train the run of a job, or go on with it; return what it gave."""
    user_code.use_all(job.use)
    config = decode(RunConfig, job.config)
    started = time.perf_counter()
    status, reason = _train(config, job.folder)
    seconds = time.perf_counter() - started
    lines = _metrics(job.folder / "runs" / config.name)
    return _result(job, config, status, reason, seconds, lines)


def _train(config: RunConfig, folder: Path) -> tuple[Status, str]:
    """Train in `folder/runs/run`; a run that was begun goes on from its newest checkpoint."""
    runs = folder / "runs"
    place = runs / config.name
    resumed = place if (place / "checkpoints").is_dir() and any((place / "checkpoints").iterdir()) else None
    if resumed is None:
        shutil.rmtree(place, ignore_errors=True)
    try:
        done = train_run(ResolvedRun(config, resumed, config if resumed else None), runs)
    except Diverged as error:
        return "diverged", first_line(error)
    except HeddleError as error:
        return "failed", first_line(error)
    if done.stopped is not None:
        raise SystemExit(done.exit_code or 1)  # a signal: not finished
    return "done", ""


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in read_text(path).splitlines()] if path.exists() else []


def _result(
    job: Job, config: RunConfig, status: Status, reason: str, seconds: float, lines: list[dict[str, Any]]
) -> Result:
    model = build_meta(config.model)
    curve = tuple((line["step"], line["validation_loss"]) for line in lines if line.get("validation_loss") is not None)
    last = next((line for line in reversed(lines) if "validation_loss" in line), {})
    ended = status == "done" and last.get("step") == config.training.steps
    loss = float(last["validation_loss"]) if ended else math.inf
    tokens = config.training.steps * config.training.batch * config.rows.max_length
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return Result(
        **job.names,
        status="diverged" if status == "done" and not math.isfinite(loss) else status,
        reason=reason,
        loss=loss,
        bits_per_byte=last.get("bits_per_byte"),
        parameters=count_parameters(model),
        active_parameters=active_parameters(model),
        flops_per_token=training_flops(model, config.rows.max_length),
        steps=config.training.steps,
        tokens=tokens,
        learning_rate=fields_of(config.training.optimizer).get("learning_rate"),
        optimizer=config.training.optimizer.kind,
        seconds=round(seconds, 2),
        tokens_per_second=round(sorted(rates)[len(rates) // 2], 1) if rates else 0.0,
        peak_gib=round(_peak_gib(), 3),
        skipped_steps=int(max((line.get("skipped", 0) for line in lines), default=0)),
        commit=_commit(),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        torch=torch.__version__,
        curve=curve,
    )


def _peak_gib() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _commit() -> str:
    """Return the commit of the library, where it is a checkout."""
    here = str(Path(__file__).parent)
    command = ["git", "-C", here, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Read a job, do it, write its result beside it; remove the checkpoints of a finished run."""
    spec = Path(sys.argv[1])
    job = Job.read(spec)
    result = work(job)
    write_text(job.folder / "result.json", result.line())
    shutil.rmtree(job.folder / "runs" / "run" / "checkpoints", ignore_errors=True)


if __name__ == "__main__":
    main()
