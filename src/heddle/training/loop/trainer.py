"""Trainer: the training loop. Everything periodic is a callback; everything numeric is the step."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from heddle.checkpoints import BASE, FROZEN_MODEL, FrozenModel, FrozenWeights
from heddle.checkpoints.store import Checkpoint, Snapshot
from heddle.core import ConfigError, EnvironmentFault
from heddle.core.system import Hardware
from heddle.data.rows import Batch, Loader
from heddle.models.networks import Model
from heddle.nn.state import State
from heddle.objectives import LossFunction, ObjectiveConfig
from heddle.training.loop.reduction import ProcessGroup
from heddle.training.loop.signals import CODES, Signals
from heddle.training.loop.step import Report, Step
from heddle.training.optimizers import ScheduleConfig


class Callback:
    """Something that happens now and then.

    saved_as: the name of its state in a checkpoint; every callback that has any needs one.
    """

    saved_as: ClassVar[str] = ""

    def before_fit(self, trainer: "Trainer") -> None:
        """Run once, after the run was set up or resumed."""

    def after_step(self, trainer: "Trainer", report: Report) -> None:
        """Run after every step."""

    def after_fit(self, trainer: "Trainer") -> None:
        """Run once, when the loop has ended, for whatever reason."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed run must know, as plain data."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`."""


@dataclass
class Trainer:
    """One run: what is trained, on what, how far it has come, and why it should stop."""

    folder: Path
    model: Model
    take_step: Step
    loader: Loader
    schedule: ScheduleConfig
    objective: ObjectiveConfig
    steps: int
    hardware: Hardware
    signals: Signals
    texts: Mapping[str, str]  # small files that every checkpoint carries
    data: list[str]  # fingerprints of what it is trained on
    held_out: str | None = None  # checksum of the text that is held out
    frozen: FrozenWeights | None = None  # what checkpoints leave out
    frozen_model: FrozenModel | None = None  # what the objective reads beside the model: a teacher, say
    callbacks: list[Callback] = field(default_factory=list)
    step: int = 0
    saved: int = 0  # the step of the last checkpoint
    metric: float | None = None  # the validation loss, if it was measured after this very step
    stop: str | None = None  # why to stop, once all processes have agreed
    stop_request: str | None = None  # why this process would stop; all do, together, after the next step

    @property
    def loss(self) -> LossFunction:
        """Return the loss of a model on a batch."""
        return self.objective.loss_function(None if self.frozen_model is None else self.frozen_model.model)

    def fit(self) -> None:
        """Train until the steps are done or there is a reason to stop."""
        self.model.train(self.objective.trains_with_dropout)
        with contextlib.ExitStack() as leaving:
            leaving.enter_context(self.signals)  # left last: a signal must not cut short a save that is waited for
            for callback in self.callbacks:
                callback.before_fit(self)
                leaving.callback(callback.after_fit, self)
            with self._report_out_of_memory():
                self._loop()

    def _loop(self) -> None:
        for batch in self._batches():
            report = self._train_step(batch)
            self.step += 1
            self.stop_on_signal()
            for callback in self.callbacks:
                callback.after_step(self, report)
            if self.stop is not None:
                return

    def stop_on_signal(self) -> None:
        """Stop after this step on a signal, where there is one process; several agree first."""
        if self.signals.caught is not None and self.take_step.processes.world == 1:
            self.stop = self.stop or f"signal {self.signals.name}"

    def _batches(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        while self.step < self.steps:
            yield next(batches)

    def _train_step(self, batch: Batch) -> Report:
        tokens = self._sum_tokens_and_stops(batch.tokens)
        self.metric = None
        self.take_step.optimizers.set_learning_rate(self.schedule.factor(self.step, self.steps))
        self.take_step.set_scheduled(self.objective.scheduled_value(self.step, self.steps))
        return self.take_step(batch.to(self.hardware.device), self.step, max(1, tokens))

    def _sum_tokens_and_stops(self, tokens: int) -> int:
        """Add up the tokens of all processes; where one has a reason to stop, all stop after this step."""
        processes, caught = self.take_step.processes, self.signals.caught
        counts = torch.tensor([tokens, *(caught is s for s in CODES), self.stop_request is not None], dtype=torch.int64)
        total, *caught_by, stop_requests = processes.all_reduce(counts).tolist()
        for which, count in zip(CODES, caught_by, strict=True):
            if count:
                self.signals.relay(which)
                self.stop = self.stop or f"signal {self.signals.name}"
        if stop_requests:
            self.stop = self.stop or self.stop_request or "another process saved_rows a reason"
        return int(total)

    @contextlib.contextmanager
    def _report_out_of_memory(self) -> Iterator[None]:
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            rows = self.take_step.micro_batch
            raise EnvironmentFault(
                f"out of memory at step {self.step} with {rows} rows at once: set training.micro_batch below {rows} "
                "(and hardware.compile=on where it is graphs), "
                f"or a smaller model; the checkpoints in {self.folder} are intact"
            ) from error

    def snapshot(self) -> Snapshot:
        """Return everything that is needed to resume exactly here; all processes must call it together."""
        step = self.take_step
        stored = (lambda weights: weights) if self.frozen is None else self.frozen.without
        tensors: dict[str, Mapping[str, torch.Tensor]] = {
            "model": stored(self.model.weights()),
            "optimizer": step.optimizers.tensors(),
            "guard": step.guard.tensors(),
        }
        if step.average is not None:
            tensors["average"] = stored(step.average.weights)
        if any(step.carried):
            tensors["carried"] = _flatten_states(step.carried, step.processes)
        state = {
            "step": self.step,
            "rows": self.loader.consumed,
            "data": self.data,
            "held_out": self.held_out,
            "callbacks": {c.saved_as: c.state() for c in self.callbacks if c.saved_as},
        }
        if self.frozen is not None:
            state[BASE] = self.frozen.reference.to_state()
        if self.frozen_model is not None:
            state[FROZEN_MODEL] = self.frozen_model.reference.to_state()
        return Snapshot(self.step, tensors, state, self.texts, self.metric)

    def restore(self, checkpoint: Checkpoint, frozen: Mapping[str, torch.Tensor] = MappingProxyType({})) -> None:
        """Resume from a checkpoint, with the frozen weights that it leaves out."""
        step = self.take_step
        self.model.load_weights({**frozen, **checkpoint.tensors("model")})
        step.optimizers.load(checkpoint.tensors("optimizer"))
        step.guard.load(checkpoint.tensors("guard"))
        if step.average is not None:
            group = "average" if "average" in checkpoint.groups else "model"
            step.average.load(checkpoint.tensors(group))
        if "carried" in checkpoint.groups:
            step.carried = _unflatten_states(checkpoint.tensors("carried"), step, self.hardware.device)
        state: Mapping[str, Any] = checkpoint.state
        self.step, self.loader.consumed = state["step"], state["rows"]
        self.saved = self.step
        for callback in self.callbacks:
            if callback.saved_as in state["callbacks"]:
                callback.load(state["callbacks"][callback.saved_as])


def _is_memory(error: BaseException) -> bool:
    """Tell whether memory ran out; on the CPU torch has only a message for it."""
    mentioned = any(words in str(error) for words in ("can't allocate memory", "bad_alloc"))
    return mentioned or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _flatten_states(carried: list[State | None], processes: ProcessGroup) -> dict[str, torch.Tensor]:
    """Name what all processes carry by the number of the micro-batch in the whole batch, slot and number."""
    tensors: dict[str, torch.Tensor] = {}
    for index, state in enumerate(carried):
        for name, tensor in {} if state is None else state.tensors().items():
            for rank, found in enumerate(processes.all_gather(tensor)):
                tensors[f"{rank * len(carried) + index}/{name}"] = found
    return tensors


def _unflatten_states(tensors: Mapping[str, torch.Tensor], step: Step, device: torch.device) -> list[State | None]:
    """Undo `_flatten_states`: return this process's share in its own micro-batches."""
    pieces: dict[int, dict[str, torch.Tensor]] = {}
    for path, tensor in tensors.items():
        index, _, name = path.partition("/")
        pieces.setdefault(int(index), {})[name] = tensor.to(device)
    whole = State.join([State.from_tensors(pieces[index]) for index in sorted(pieces)])
    share, processes, saved_rows = step.micro_batch * len(step.carried), step.processes, len(whole.lengths)
    if saved_rows != share * processes.world:
        want = f"{saved_rows} when resuming, because each row carries its own state"
        raise ConfigError("training.batch", want=want, got=share * processes.world)
    first = processes.rank * share
    return [whole.select(range(at, at + step.micro_batch)) for at in range(first, first + share, step.micro_batch)]
