"""Early stopping: on divergence, when the held-out loss no longer falls, or when time is up."""

import time
from collections.abc import Mapping
from typing import Any

from heddle.core import HeddleError
from heddle.training.loop import Callback, Report, Trainer


class Diverged(HeddleError):
    """Too many bad steps in a row."""

    exit_code = 3


class StopOnDivergence(Callback):
    """Ends the run after this many skipped steps in a row, without a checkpoint of them.

    On a GPU the count is read one step late, so that nothing waits.
    """

    def __init__(self, max_consecutive: int) -> None:
        self.max_consecutive = max_consecutive

    def after_step(self, trainer: Trainer, report: Report) -> None:
        guard = trainer.take_step.guard
        if guard.consecutive_bad() >= self.max_consecutive:
            raise Diverged(
                f"{self.max_consecutive} bad steps in a row at step {trainer.step} "
                f"(loss {float(report.loss):.4g}, gradient norm {float(report.norm):.4g}): "
                "lower the learning rate or look at the data; the checkpoints are intact"
            )


class EarlyStopping(Callback):
    """Early stopping: ends the run when the held-out loss has not fallen for `patience` validations."""

    saved_as = "EarlyStopping"

    def __init__(self, patience: int) -> None:
        self.patience, self.since = patience, 0
        self.best: float | None = None

    def before_fit(self, trainer: Trainer) -> None:
        self._check(trainer)

    def after_step(self, trainer: Trainer, report: Report) -> None:
        self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if trainer.metric is None:
            return
        fell = self.best is None or trainer.metric < self.best
        self.since = 0 if fell else self.since + 1
        self.best = trainer.metric if fell else self.best
        if self.since >= self.patience:
            trainer.stop = f"held-out loss has not fallen for {self.patience} validations"

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since}

    def load(self, state: Mapping[str, Any]) -> None:
        self.best, self.since = state["best"], state["since"]


class TimeLimit(Callback):
    """Ends the run when its time is up."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes

    def before_fit(self, trainer: Trainer) -> None:
        self.since = time.monotonic()

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if time.monotonic() - self.since > 60 * self.minutes:
            trainer.stop_request = f"{self.minutes:g} minutes are over"  # clocks differ: the processes must agree
