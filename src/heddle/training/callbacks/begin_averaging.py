"""Begin: let an average of the weights begin when the held-out loss no longer falls."""

from collections.abc import Mapping
from typing import Any

from heddle.training.loop import Callback, Report, Trainer
from heddle.training.optimizers import WeightAverage


class StartAveraging(Callback):
    """Watch the held-out loss; when it is above the best of long enough ago, averaging begins."""

    saved_as = "StartAveraging"

    def __init__(self, average: WeightAverage, patience: int) -> None:
        self.average, self.patience = average, patience
        self.losses: list[float] = []
        self.begun: float | None = None  # after how many good steps

    def before_fit(self, trainer: Trainer) -> None:
        self._look(trainer)  # a validation that a signal cut short was made good

    def after_step(self, trainer: Trainer, report: Report) -> None:
        self._look(trainer)

    def _look(self, trainer: Trainer) -> None:
        if trainer.metric is None or self.begun is not None:
            return
        if trainer.metric > min(self.losses[: -self.patience], default=float("inf")):
            self.begun = float(trainer.take_step.guard.good)
            self.average.begin_after(self.begun)
        self.losses.append(trainer.metric)

    def state(self) -> dict[str, Any]:
        return {"losses": self.losses, "begun": self.begun}

    def load(self, state: Mapping[str, Any]) -> None:
        self.losses, self.begun = list(state["losses"]), state["begun"]
        if self.begun is not None:
            self.average.begin_after(self.begun)
