"""Training step: gradient accumulation over micro-batches, gradient clipping, a guard against spikes, update."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from heddle.core import Config, Positive, Purpose, key, settings, within
from heddle.data.rows import Batch
from heddle.models.networks import Model
from heddle.nn.state import State
from heddle.objectives import Loss, LossFunction
from heddle.training.loop.reduction import (
    FastAccumulation,
    GradientAccumulation,
    PairwiseSum,
    ProcessGroup,
    pairwise_all_reduce,
)
from heddle.training.optimizers import Optimizers, WeightAverage, global_norm

UPDATE = "optimizer"  # what a profile calls the update
EPS = 1e-6  # added to a gradient's norm, which may be zero


@settings
class GuardConfig(Config):
    """Which steps are skipped, and when the run ends as diverged.

    spike: a step is skipped if its gradient norm exceeds this multiple of the running mean.
    patience: good steps before a spike can be detected.
    max_consecutive: bad steps in a row that stop the run, as diverged.
    """

    old_fields = {"in_a_row": "max_consecutive"}

    spike: Annotated[float, within("at least 1", lambda spike: spike >= 1)] = 20.0
    patience: Positive = 20
    max_consecutive: Positive = 5


@dataclass
class Guard:
    """The running mean of good norms and the counts of bad steps, all on the device."""

    config: GuardConfig
    mean: Tensor
    good: Tensor
    skipped: Tensor
    consecutive: Tensor  # bad steps in a row, up to now
    pending_count: tuple[torch.cuda.Event, Tensor] | None = None  # pending copy of the previous step's

    @classmethod
    def start(cls, config: GuardConfig, device: torch.device) -> "Guard":
        """Return a guard that has seen no step."""
        mean, good, skipped, consecutive = (torch.zeros((), device=device) for _ in range(4))
        return cls(config, mean, good, skipped, consecutive)

    def check(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Return whether the step is bad, and count it."""
        enough = self.good >= self.config.patience
        spike = enough & (norm > self.config.spike * self.mean)
        bad = ~torch.isfinite(loss) | ~torch.isfinite(norm) | spike
        keep = (self.good / (self.good + 1)).clamp(max=0.98)  # at first a plain mean: the first norm must not dominate
        self.mean = torch.where(bad, self.mean, keep * self.mean + (1 - keep) * norm)
        self.good = self.good + ~bad
        self.skipped = self.skipped + bad
        self.consecutive = torch.where(bad, self.consecutive + 1, 0)
        return bad

    def consecutive_bad(self) -> int:
        """Return the bad steps in a row; on a GPU those of the step before, so that nothing waits for this one."""
        if not self.consecutive.is_cuda:
            return int(self.consecutive)
        before, arrived = self.pending_count, torch.cuda.Event()
        buffer = torch.empty((), pin_memory=True).copy_(self.consecutive, non_blocking=True)
        arrived.record()
        self.pending_count = (arrived, buffer)
        if before is None:
            return 0
        before[0].synchronize()
        return int(before[1])

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""
        return {"mean": self.mean, "good": self.good, "skipped": self.skipped, "consecutive": self.consecutive}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore from `tensors()`."""
        device = self.mean.device
        self.mean, self.good = tensors["mean"].to(device), tensors["good"].to(device)
        self.skipped = tensors["skipped"].to(device)
        self.consecutive = tensors["row" if "row" in tensors else "consecutive"].to(device)  # row: until format 3


@dataclass(frozen=True)
class Report:
    """What one step did; tensors stay on the device until they are read."""

    loss: Tensor  # nats per token, over all processes
    norm: Tensor  # of the gradient, before clipping
    bad: Tensor  # whether the step was skipped
    tokens: int
    learning_rate: float
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # of parts, such as router loads


class ModelWithLoss(nn.Module):
    """The model under its objective as one module, so that compiling and wrapping see the whole computation."""

    def __init__(self, model: Model, loss: LossFunction) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch, carried: State | None, scheduled: Tensor | None = None) -> Loss:
        return self.loss(self.model, batch, carried, scheduled)


@dataclass
class Step:
    """All that one optimizer step needs, built once."""

    losses: nn.Module  # `ModelWithLoss`, possibly compiled and wrapped in DDP
    model: Model
    optimizers: Optimizers
    guard: Guard
    average: WeightAverage | None
    processes: ProcessGroup
    seed: int
    clip: float | None
    micro_batch: int  # rows at once on this process
    carried: list[State | None]  # one for each micro-batch: the state of its streams
    recover: Callable[[Exception], bool] | None = None  # called on an error; True: try the first micro-batch again
    scheduled: Tensor | None = None  # what the objective schedules over training
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # of one micro-batch, then their mean over the step
    before: list[State | None] = field(default_factory=list)  # states before this step, to restore if it is skipped
    accumulation: GradientAccumulation = field(default_factory=FastAccumulation)  # sums micro-batches

    def __post_init__(self) -> None:
        self.parameters = list(self.model.parameters())  # once: to walk a deep model at each step is slow
        self.device = self.parameters[0].device

    def set_scheduled(self, scheduled: float | None) -> None:
        """Set what the objective schedules over training; a tensor, so that a compiled step stays valid."""
        if scheduled is not None:
            self.scheduled = torch.tensor(scheduled, device=self.device)

    def __call__(self, batch: Batch, number: int, tokens: int) -> Report:
        """Take step `number` on this process's share of a batch whose targets number `tokens` over all processes."""
        weight = self.accumulation.weight(self.processes) / tokens
        pieces = [batch.slice(first, first + self.micro_batch) for first in range(0, len(batch), self.micro_batch)]
        self.before = [None] * len(pieces)
        self.accumulation.begin(self.device)
        metrics = PairwiseSum()
        for index, piece in enumerate(pieces):
            place = self.processes.rank * len(pieces) + index  # in the whole batch: dropout is the same on any process
            with self._gradient_sync(last=index == len(pieces) - 1):
                loss = self._accumulate(piece, index, key(self.seed, Purpose.DROPOUT, number, place), weight)
            self.accumulation.add(loss)
            if self.metrics:
                metrics.add([torch.stack([value.detach().float() for value in self.metrics.values()])])
        if self.metrics:
            mean = pairwise_all_reduce(metrics.total()[0], self.processes) / (len(pieces) * self.processes.world)
            self.metrics = dict(zip(self.metrics, mean.unbind(), strict=True))
        with record_function(UPDATE):  # so that a profile shows it apart
            return self._update(self.accumulation.finish(self.processes) / tokens, tokens)

    def _accumulate(self, piece: Batch, index: int, seed: int, weight: float) -> Tensor:
        """Add a micro-batch's gradients to the weights'; try once more where `recover` can handle the error."""
        state_before = self.carried[index]
        try:
            return self._forward_backward(piece, index, seed, weight)
        except Exception as error:
            if index or self.recover is None or not self.recover(error):
                raise
        self.optimizers.zero_grad()
        self.carried[index] = state_before  # forward may have changed it
        return self._forward_backward(piece, index, seed, weight)

    def _forward_backward(self, piece: Batch, index: int, seed: int, weight: float) -> Tensor:
        _seed(seed, self.device)
        loss = self._forward(piece, index)
        (loss * weight).backward()
        return loss.detach()

    def _forward(self, piece: Batch, index: int) -> Tensor:
        if piece.fresh is not None:
            initial_state = self.carried[index] or State.empty(len(piece), 1, piece.inputs.device)
            self.before[index] = initial_state.reset(piece.fresh)
        loss: Loss = self.losses(piece, self.before[index], self.scheduled)
        if piece.fresh is not None:
            self.carried[index] = None if loss.carried is None else loss.carried.detach()
        self.metrics = loss.metrics
        return loss.total

    @contextlib.contextmanager
    def _gradient_sync(self, last: bool) -> Iterator[None]:
        """Let processes exchange gradients in the last micro-batch only (DDP no_sync)."""
        if isinstance(self.losses, DistributedDataParallel) and not last:
            with self.losses.no_sync():
                yield
        else:
            yield

    def _update(self, loss: Tensor, tokens: int) -> Report:
        norm = global_norm(self.parameters)
        bad = self.guard.check(loss, norm)
        self.optimizers.step(bad, None if self.clip is None else ((norm + EPS) / self.clip).clamp(min=1))
        self.optimizers.zero_grad()
        if any(self.before):
            self.carried = [_revert_if_bad(*pair, bad) for pair in zip(self.before, self.carried, strict=True)]
        if self.average is not None:
            self.average.update(self.model, bad, self.guard.good)
        return Report(loss, norm, bad, tokens, self.optimizers.learning_rate, self.metrics)


def _seed(value: int, device: torch.device) -> None:
    """Seed dropout on its device; torch's `manual_seed` also visits all other kinds of device, which is slow."""
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)


def _revert_if_bad(before: State | None, after: State | None, bad: Tensor) -> State | None:
    """Return the state of streams after a step: as before it if it was bad, since a NaN would stay forever."""
    if before is None or after is None:
        return after
    old = before.tensors()  # without slots at the very start
    kept = {n: torch.where(bad, old[n] if n in old else torch.zeros_like(t), t) for n, t in after.tensors().items()}
    return State.from_tensors(kept)
