"""Save: a checkpoint every `every.save` steps, at the end, and after a signal."""

import dataclasses
import logging
from pathlib import Path

from heddle.checkpoints.store import Checkpoint, Snapshot, Store, average_checkpoints, open_checkpoint
from heddle.core import DamageError
from heddle.training.callbacks.log import Metrics
from heddle.training.loop import Callback, Report, Trainer

log = logging.getLogger("heddle")


class Save(Callback):
    """Keep the run on disk; only the leading process writes."""

    def __init__(self, store: Store, every: int, average_last: int = 0, metrics: Metrics | None = None) -> None:
        self.store, self.every, self.average_last, self.metrics = store, every, average_last, metrics
        self._started: tuple[int, str] | None = None  # the step and name of a save that may still be under way

    def before_fit(self, trainer: Trainer) -> None:
        for needed in (trainer.frozen, trainer.frozen_model):
            if needed is not None and trainer.take_step.processes.is_main:
                needed.source.keep_for(trainer.folder)
        if trainer.metric is not None:  # a validation was repeated: the checkpoint of this step is to hold it
            self._save(trainer)

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step % self.every == 0 or trainer.step == trainer.steps or trainer.stop is not None:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        snapshot = trainer.snapshot()  # on all processes: the carried state of each belongs in the one checkpoint
        if trainer.take_step.processes.is_main:
            self._finish()
            path = self.store.save(self._with_mean(snapshot) if trainer.step == trainer.steps else snapshot)
            self._started = trainer.step, path.name
            if not self.store.in_background:
                self._finish()
        trainer.saved = trainer.step

    def _finish(self) -> None:
        """Wait for the save and record it in the metrics, so that missing checkpoints are noticed."""
        self.store.wait()
        if self._started is not None and self.metrics is not None:
            step, name = self._started
            self.metrics.write(step=step, checkpoint=name)
        self._started = None

    def _with_mean(self, snapshot: Snapshot) -> Snapshot:
        """Add the mean of the last checkpoints to the final one, for use instead of its weights."""
        if self.average_last < 2:
            return snapshot
        entries = [e for e in self.store.list() if e.step < snapshot.step][1 - self.average_last :]
        good = [checkpoint for entry in entries if (checkpoint := _open_checkpoint(entry.path)) is not None]
        if not good:
            return snapshot
        earlier, share = average_checkpoints(good), 1 / (len(good) + 1)
        mean = {name: earlier[name].lerp(now.cpu(), share) for name, now in snapshot.tensors["model"].items()}
        return dataclasses.replace(snapshot, tensors={**snapshot.tensors, "average": mean})

    def after_fit(self, trainer: Trainer) -> None:
        self._finish()


def _open_checkpoint(path: Path) -> Checkpoint | None:
    """Open a checkpoint for averaging; a damaged one is left out with a warning."""
    try:
        return open_checkpoint(path)
    except DamageError as error:
        log.warning("%s: left out of the average", error)
        return None
