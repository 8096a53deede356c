"""The header of a run: what it learns from, how long, with what model and on what, and how long it will take."""

import time
from collections.abc import Iterator, Sequence

import torch

from heddle.core.system import Hardware
from heddle.data.rows import RowPlan
from heddle.data.shards import Prepared
from heddle.models import count_parameters
from heddle.models.networks import Model
from heddle.training.loop import Callback, Report, Reporter, Trainer
from heddle.training.run_config import RunConfig

TIMED = 2.0  # seconds of steps from which the whole time is estimated; the first step is not among them


def header(
    config: RunConfig, prepared: Sequence[Prepared], plan: RowPlan, held_out: RowPlan, model: Model, hardware: Hardware
) -> Iterator[str]:
    """Yield the lines that a run begins with."""
    for corpus in prepared:
        yield f"documents: {corpus.counter}"
    train, valid = (each.rows_per_epoch * each.mean_length for each in (plan, held_out))
    yield f"tokens    about {train:,} in an epoch, {valid:,} held out"
    steps, batch = config.training.steps, config.training.batch
    epochs = steps * batch / max(1, plan.rows_per_epoch)
    rows = f"{batch} rows of {plan.mean_length} tokens"
    yield f"training  {steps:,} steps of {rows}: {steps * batch * plan.mean_length:,} tokens, {epochs:.2g} epochs"
    yield f"model     {count_parameters(model):,} parameters"
    number = torch.get_num_threads()
    threads = f", {number} thread{'s' * (number > 1)}" if hardware.device.type == "cpu" else ""
    yield f"hardware  {hardware.device} ({hardware.name}), {str(hardware.dtype).removeprefix('torch.')}{threads}"


class EstimateTime(Callback):
    """Says, once the first steps are timed, how long the run will take."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.since: float | None = None
        self.done = False

    def before_fit(self, trainer: Trainer) -> None:
        self.first = trainer.step + 1

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if self.done:
            return
        now = time.perf_counter()
        if self.since is None:  # after the first step, which warms up or compiles
            self.since = now
        elif now - self.since >= TIMED:
            self.done = True
            pace = (now - self.since) / (trainer.step - self.first)
            left = pace * (trainer.steps - trainer.step)
            self.reporter.message(f"time      about {duration(left)} to go: {pace:.3g} s a step")


def duration(seconds: float) -> str:
    """Return a time in two units at most."""
    minutes, hours = round(seconds / 60), int(seconds // 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if hours < 2 else f"{hours} h {minutes - 60 * hours} min"
