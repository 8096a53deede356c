"""Validation: the loss, perplexity and bits per byte on held-out rows, every `every.validate` steps."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from heddle.core import ConfigError, DataError, bounded_exp
from heddle.data.rows import Batch, MeasuredText, RowPlan
from heddle.models.networks import Model
from heddle.nn.state import State
from heddle.objectives import LossFunction, ObjectiveConfig
from heddle.training.callbacks.log import Metrics
from heddle.training.loop import Callback, ProcessGroup, Report, Reporter, Signals, Trainer
from heddle.training.optimizers import WeightAverage


@dataclass(frozen=True)
class Measurement:
    """The loss on held-out rows in nats, and metrics such as accuracy."""

    loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class HeldOutRows:
    """Held-out rows, how many at once, and the text that the targets of rows stand for."""

    plan: RowPlan
    batch: int
    text_of: Callable[[range], MeasuredText]
    most: int | None = None  # rows; None: all
    lanes: int | None = None  # of streams, at once; None: as many as each process has
    prepare: Callable[[Batch], Batch] | None = None  # as the objective shows a batch; None: its `prepare`, seed 0
    first: int = 0  # the row at which they begin

    @torch.no_grad()
    def measure(
        self,
        model: Model,
        objective: ObjectiveConfig,
        processes: ProcessGroup,
        signals: Signals,
        loss_of: LossFunction | None = None,
    ) -> Measurement | None:
        """Return the mean loss in nats per token and the objective's metrics; None when a signal cuts it short.

        Rows are measured in the same groups, and the groups added in the same order, by any number of processes; of
        streams only where `lanes` is given. `loss_of` is the loss of an objective that reads a frozen model.
        """
        device = next(model.parameters()).device
        groups = self._groups(processes.world)
        predictions = torch.zeros(self.rows, objective.prediction_width(self.plan.length), device=device)
        sums = torch.zeros(len(groups), 2, dtype=torch.float64, device=device)
        was_training, states = model.training, dict[int, State | None]()
        model.eval()
        try:
            for number, (lane, rows) in enumerate(groups):
                if lane % processes.world != processes.rank:
                    continue
                batch, carried = self.plan.build_batch(rows), states.get(lane)
                if signals.caught is not None and processes.world == 1:
                    return None
                shown = objective.prepare(batch, seed=0) if self.prepare is None else self.prepare(batch)
                here = shown.to(device)
                if here.fresh is not None:
                    carried = (carried or State.empty(len(here), 1, device)).reset(here.fresh)
                loss = (loss_of or objective)(model, here, carried, None)
                if here.fresh is not None:
                    states[lane] = loss.carried
                sums[number] = torch.stack((loss.total.double(), here.weights.sum().double()))
                if loss.predictions is not None:
                    at = rows.start - self.first
                    predictions[at : at + len(rows), : loss.predictions.shape[1]] = loss.predictions
        finally:
            model.train(was_training)
        total, tokens = processes.all_reduce(sums).sum(0).tolist()  # each group has one process; the others add 0
        if not tokens:
            raise DataError(
                f"validation_rows: the {self.rows} rows have no target with a loss weight; measure more rows"
            )
        return Measurement(float(total / tokens), self._metrics(objective, processes.all_reduce(predictions)))

    def _metrics(self, objective: ObjectiveConfig, predictions: Tensor) -> dict[str, float]:
        """Return the metrics of what was predicted for all rows, by whichever process."""
        if not predictions.shape[1]:
            return {}
        every = [range(first, min(first + self.batch, self.end)) for first in range(self.first, self.end, self.batch)]
        batches = [self.plan.build_batch(rows) for rows in every]
        return objective.metrics(predictions.float().cpu().numpy(), batches)

    def _groups(self, world: int) -> list[tuple[int, range]]:
        """Return the rows that are measured at once, each with a number by which processes share them.

        Of streams the same lanes have the same number, since their state is carried.
        """
        if self.plan.batch is None:
            firsts = range(self.first, self.end, self.batch)
            return [(n, range(first, min(first + self.batch, self.end))) for n, first in enumerate(firsts)]
        lanes = self.plan.batch
        size = -(-lanes // world) if self.lanes is None else self.lanes
        return [
            (at // size, range(first + at, min(first + at + size, first + lanes, self.end)))
            for first in range(self.first, self.end, lanes)
            for at in range(0, min(lanes, self.end - first), size)
        ]

    @cached_property
    def text(self) -> MeasuredText:
        """Return the text that the targets of these rows stand for."""
        return self.text_of(range(self.first, self.end))

    def bits_per_byte(self, loss: float) -> float:
        """Return a loss in nats per token of these rows as bits per byte; one that an unknown token hides counts 8."""
        return (loss / math.log(2) + 8 * self.text.lost_per_token) / self.text.bytes_per_token

    @property
    def rows(self) -> int:
        """Count the rows that are measured."""
        return min(measured_rows(self.plan, self.most), self.plan.rows_per_epoch - self.first)

    @property
    def end(self) -> int:
        """Return the row after the last that is measured."""
        return self.first + self.rows

    def following(self) -> "HeldOutRows | None":
        """Return the rows after these, as many at most, for a loss that decides nothing; None: none are left."""
        after = dataclasses.replace(self, first=self.end)
        return after if after.rows > 0 else None


def measured_rows(plan: RowPlan, most: int | None) -> int:
    """Return how many rows of a plan are measured, of `most`; of streams, all lanes go equally far."""
    all_rows, lanes = plan.rows_per_epoch, plan.batch or 1
    return all_rows if most is None else min(-(-most // lanes) * lanes, all_rows)


class Validate(Callback):
    """Write the held-out loss, perplexity and bits per byte; a checkpoint of the same step is ranked by it."""

    saved_as = "Validate"

    def __init__(
        self, held_out: HeldOutRows, objective: ObjectiveConfig, metrics: Metrics, reporter: Reporter, every: int
    ) -> None:
        if every < 1:
            raise ConfigError("every.validate", want="at least 1", got=every)
        self.held_out, self.objective, self.every = held_out, objective, every
        self.metrics, self.reporter = metrics, reporter
        self.last = 0  # the step of the latest measurement

    def before_fit(self, trainer: Trainer) -> None:
        if self._due(trainer) and trainer.step != self.last:
            self._validate(trainer)  # a validation that a signal cut short is repeated

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if self._due(trainer):
            self._validate(trainer)

    def _due(self, trainer: Trainer) -> bool:
        return trainer.step % self.every == 0 or trainer.step == trainer.steps

    def state(self) -> dict[str, Any]:
        return {"last": self.last}

    def load(self, state: Mapping[str, Any]) -> None:
        self.last = state["last"]

    def _validate(self, trainer: Trainer) -> None:
        found = self.measure(trainer, self.held_out)
        if found is None:
            trainer.stop_on_signal()
            return
        loss = found.loss
        trainer.metric, self.last = loss, trainer.step
        figures = {"validation_loss": loss}
        line = f"step {trainer.step}  held-out loss {loss:.4f}"
        if self.objective.reads_examples or found.metrics:
            figures |= {name: round(value, 5) for name, value in found.metrics.items()}
            line += "".join(f"  {name.replace('_', ' ')} {value:.4f}" for name, value in found.metrics.items())
        else:
            figures["perplexity"] = bounded_exp(loss)
            line += f"  perplexity {figures['perplexity']:.2f}"
        if self.objective.gives_bits_per_byte:
            text = self.held_out.text
            figures["bits_per_byte"] = self.held_out.bits_per_byte(loss)
            line += f"  {figures['bits_per_byte']:.3f} bits per byte"
            if text.lost_per_token:
                figures["unknown_share"] = text.lost_per_token / text.bytes_per_token
                line += f", unknown tokens hide {figures['unknown_share']:.1%} of the text"
        self.metrics.write(step=trainer.step, **figures)
        self.reporter.message(line)

    def measure(self, trainer: Trainer, rows: HeldOutRows) -> Measurement | None:
        """Return what held-out rows give, by the averaged weights where there are any; None: cut short."""
        step = trainer.take_step
        average: WeightAverage | None = step.average
        with contextlib.nullcontext() if average is None else average.in_place(trainer.model):
            return rows.measure(trainer.model, self.objective, step.processes, trainer.signals, trainer.loss)


class StartAveraging(Callback):
    """Starts averaging the weights when the held-out loss has stopped falling (NT-ASGD, Merity et al. 2017)."""

    saved_as = "StartAveraging"

    def __init__(self, average: WeightAverage, patience: int) -> None:
        self.average, self.patience = average, patience
        self.losses: list[float] = []
        self.started_at: float | None = None  # after how many good steps

    def before_fit(self, trainer: Trainer) -> None:
        self._check(trainer)  # a validation that a signal had cut short may have been repeated

    def after_step(self, trainer: Trainer, report: Report) -> None:
        self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if trainer.metric is None or self.started_at is not None:
            return
        if trainer.metric > min(self.losses[: -self.patience], default=float("inf")):
            self.started_at = float(trainer.take_step.guard.good)
            self.average.begin_after(self.started_at)
        self.losses.append(trainer.metric)

    def state(self) -> dict[str, Any]:
        return {"losses": self.losses, "begun": self.started_at}

    def load(self, state: Mapping[str, Any]) -> None:
        self.losses, self.started_at = list(state["losses"]), state["begun"]
        if self.started_at is not None:
            self.average.begin_after(self.started_at)
