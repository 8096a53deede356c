"""Guard: find a step whose gradient is not finite or far larger than usual, without waiting for the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core import Config, check_at_least, settings


@settings
class GuardConfig(Config):
    """When a step is skipped, and when skipping must end the run."""

    spike: float = 20.0  # times the running mean of the gradient's norm
    patience: int = 20  # good steps seen before a spike can be told
    in_a_row: int = 5  # bad steps that stop the run

    def __post_init__(self) -> None:
        check_at_least(1, spike=self.spike, patience=self.patience, in_a_row=self.in_a_row)


@dataclass
class Guard:
    """The running mean of good norms and the counts of bad steps, all on the device."""

    config: GuardConfig
    mean: Tensor
    good: Tensor
    skipped: Tensor
    row: Tensor  # bad steps in a row
    late: tuple[torch.cuda.Event, Tensor] | None = None  # the count of the step before, on its way from the GPU

    @classmethod
    def start(cls, config: GuardConfig, device: torch.device) -> "Guard":
        """Begin with nothing seen."""
        mean, good, skipped, row = (torch.zeros((), device=device) for _ in range(4))
        return cls(config, mean, good, skipped, row)

    def judge(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Return whether the step is bad, and remember it."""
        enough = self.good >= self.config.patience
        spike = enough & (norm > self.config.spike * self.mean)
        bad = ~torch.isfinite(loss) | ~torch.isfinite(norm) | spike
        keep = (self.good / (self.good + 1)).clamp(max=0.98)  # a plain mean at first, or the first norm would rule long
        self.mean = torch.where(bad, self.mean, keep * self.mean + (1 - keep) * norm)
        self.good = self.good + ~bad
        self.skipped = self.skipped + bad
        self.row = torch.where(bad, self.row + 1, 0)
        return bad

    def consecutive_bad(self) -> int:
        """Return the bad steps in a row; on a GPU those of the step before, so that nobody waits for this one."""
        if not self.row.is_cuda:
            return int(self.row)
        before, arrived = self.late, torch.cuda.Event()
        buffer = torch.empty((), pin_memory=True).copy_(self.row, non_blocking=True)
        arrived.record()
        self.late = (arrived, buffer)
        if before is None:
            return 0
        before[0].synchronize()
        return int(before[1])

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""
        return {"mean": self.mean, "good": self.good, "skipped": self.skipped, "row": self.row}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from `tensors()`."""
        device = self.mean.device
        self.mean, self.good = tensors["mean"].to(device), tensors["good"].to(device)
        self.skipped, self.row = tensors["skipped"].to(device), tensors["row"].to(device)
