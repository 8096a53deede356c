"""Save: a checkpoint every so many steps, at the end, and when a signal asks for one."""

import dataclasses

from heddle.checkpoints import Snapshot, Store, average, open_checkpoint
from heddle.training.step import Report
from heddle.training.trainer import Callback, Trainer


class Save(Callback):
    """Keep the run on disk; only the leading process writes."""

    def __init__(self, store: Store, every: int, average_last: int = 0) -> None:
        self.store, self.every, self.average_last = store, every, average_last

    def before_fit(self, trainer: Trainer) -> None:
        if trainer.metric is not None:  # a validation was made good: the checkpoint of this step is to hold it
            self._save(trainer)

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step % self.every == 0 or trainer.step == trainer.steps or trainer.stop is not None:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        snapshot = trainer.snapshot()  # by all: what each process carries belongs in the one checkpoint
        if trainer.take_step.team.leads:
            self.store.save(self._with_mean(snapshot) if trainer.step == trainer.steps else snapshot)

    def _with_mean(self, snapshot: Snapshot) -> Snapshot:
        """Put the mean of the last checkpoints beside the final weights, for use instead of them."""
        if self.average_last < 2:
            return snapshot
        entries = [e for e in self.store.list() if e.step < snapshot.step][1 - self.average_last :]
        if not entries:
            return snapshot
        earlier = average([open_checkpoint(entry.path) for entry in entries])
        share = 1 / (len(entries) + 1)
        mean = {name: earlier[name].lerp(now.cpu(), share) for name, now in snapshot.tensors["model"].items()}
        return dataclasses.replace(snapshot, tensors={**snapshot.tensors, "average": mean})

    def after_fit(self, trainer: Trainer) -> None:
        self.store.wait()
