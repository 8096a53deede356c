"""Stop: when steps go wrong in a row, when the held-out loss no longer falls, or when time is up."""

import time

from heddle.core import HeddleError
from heddle.training.step import Report
from heddle.training.trainer import Callback, Trainer


class Diverged(HeddleError):
    """Too many bad steps in a row."""

    exit_code = 3


class StopWhenBad(Callback):
    """End the run after so many skipped steps in a row, without a checkpoint of what went wrong.

    On a GPU the count is read one step late, so that nothing waits.
    """

    def __init__(self, in_a_row: int) -> None:
        self.in_a_row = in_a_row

    def after_step(self, trainer: Trainer, report: Report) -> None:
        guard = trainer.take_step.guard
        if guard.row_seen() >= self.in_a_row:
            raise Diverged(
                f"{self.in_a_row} bad steps in a row at step {trainer.step} "
                f"(loss {float(report.loss):.4g}, gradient norm {float(report.norm):.4g}): "
                "lower the learning rate or look at the data; checkpoints are whole"
            )


class StopWhenFlat(Callback):
    """End the run when the held-out loss has not fallen for so many validations."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.since = patience, float("inf"), 0
        self.last: float | None = None

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.metric is None or trainer.metric == self.last:
            return
        self.last = trainer.metric
        self.since = 0 if trainer.metric < self.best else self.since + 1
        self.best = min(self.best, trainer.metric)
        if self.since >= self.patience:
            trainer.stop = f"held-out loss has not fallen for {self.patience} validations"


class StopWhenLate(Callback):
    """End the run when its time is up."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes

    def before_fit(self, trainer: Trainer) -> None:
        self.since = time.monotonic()

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if time.monotonic() - self.since > 60 * self.minutes:
            trainer.stop = f"{self.minutes:g} minutes are over"
