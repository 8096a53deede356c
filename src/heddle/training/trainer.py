"""Trainer: the loop. Everything periodic is a callback; everything numeric is the step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from heddle.checkpoints import Checkpoint, Snapshot
from heddle.core import DamageError, EnvironmentFault, Hardware
from heddle.data import Batch, Loader
from heddle.models import Carried, Model
from heddle.training.schedules import ScheduleConfig
from heddle.training.signals import Signals
from heddle.training.step import Report, Step


class Callback:
    """Something that happens now and then."""

    def before_fit(self, trainer: "Trainer") -> None:
        """Run once, after the run was set up or resumed."""

    def after_step(self, trainer: "Trainer", report: Report) -> None:
        """Run after every step."""

    def after_fit(self, trainer: "Trainer") -> None:
        """Run once, when the loop has ended, for whatever reason."""


@dataclass
class Trainer:
    """One run: what is trained, on what, how far it has come, and why it should stop."""

    folder: Path
    model: Model
    take_step: Step
    loader: Loader
    schedule: ScheduleConfig
    steps: int
    hardware: Hardware
    signals: Signals
    texts: Mapping[str, str]  # small files that every checkpoint carries
    callbacks: list[Callback] = field(default_factory=list)
    step: int = 0
    metric: float | None = None  # the latest validation loss
    stop: str | None = None  # why to stop, once there is a reason

    def fit(self) -> None:
        """Train until the steps are done or there is a reason to stop."""
        self.model.train()
        for callback in self.callbacks:
            callback.before_fit(self)
        with self.signals:
            for batch in self._batches():
                report = self._one(batch)
                self.step += 1
                for callback in self.callbacks:
                    callback.after_step(self, report)
                if self.stop is not None:
                    break
        for callback in self.callbacks:
            callback.after_fit(self)

    def _batches(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        while self.step < self.steps:
            yield next(batches)

    def _one(self, batch: Batch) -> Report:
        team = self.take_step.team
        counts = torch.tensor([batch.tokens, self.signals.caught is not None], dtype=torch.int64)
        tokens, stop = team.sum(counts.to(self.hardware.device) if team.world > 1 else counts).tolist()
        if stop:
            self.stop = self.stop or f"signal {self.signals.name}"
        self.take_step.optimizers.set_rate(self.schedule.factor(self.step, self.steps))
        try:
            return self.take_step(batch.to(self.hardware.device), self.step, max(1, int(tokens)))
        except (MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            rows = self.take_step.micro
            raise EnvironmentFault(
                f"out of memory at step {self.step} with {rows} rows at once: set training.micro below {rows}, "
                f"or a smaller model; the checkpoints in {self.folder} are whole"
            ) from error

    def snapshot(self) -> Snapshot:
        """Return everything that a later process needs to go on exactly from here."""
        step = self.take_step
        tensors: dict[str, Mapping[str, torch.Tensor]] = {
            "model": self.model.weights(),
            "optimizer": step.optimizers.tensors(),
            "guard": step.guard.tensors(),
        }
        if step.average is not None:
            tensors["average"] = step.average.weights
        if any(step.carried):
            tensors["carried"] = _flat(step.carried)
        state = {"step": self.step, "rows": self.loader.consumed, "metric": self.metric}
        return Snapshot(self.step, tensors, state, self.texts, self.metric)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        step = self.take_step
        self.model.load_weights(checkpoint.tensors("model"))
        step.optimizers.load(checkpoint.tensors("optimizer"))
        step.guard.load(checkpoint.tensors("guard"))
        if step.average is not None:
            group = "average" if "average" in checkpoint.groups else "model"
            step.average.load(checkpoint.tensors(group))
        if "carried" in checkpoint.groups:
            step.carried = _nested(checkpoint.tensors("carried"), len(step.carried), self.hardware.device)
        state: Mapping[str, Any] = checkpoint.state
        self.step, self.loader.consumed, self.metric = state["step"], state["rows"], state["metric"]


def _is_memory(error: BaseException) -> bool:
    """Tell whether memory ran out; torch says so on the CPU in words only."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _flat(carried: list[Carried | None]) -> dict[str, torch.Tensor]:
    """Name every carried tensor by micro-batch, slot and number."""
    tensors: dict[str, torch.Tensor] = {}
    for index, state in enumerate(carried):
        if state is not None:
            tensors |= {f"{index}/{name}": tensor for name, tensor in state.tensors().items()}
    return tensors


def _nested(tensors: Mapping[str, torch.Tensor], count: int, device: torch.device) -> list[Carried | None]:
    """Undo `_flat`."""
    states: list[Carried | None] = []
    for index in range(count):
        own = {n.partition("/")[2]: t.to(device) for n, t in tensors.items() if n.partition("/")[0] == str(index)}
        states.append(Carried.from_tensors(own) if own else None)
    if any(int(n.partition("/")[0]) >= count for n in tensors):
        raise DamageError("carried state of more micro-batches than this run has: keep training.micro as it was")
    return states
