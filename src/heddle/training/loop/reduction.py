"""Gradient accumulation over micro-batches, and data parallelism over processes: how gradients are summed."""

import gc
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heddle.core import ConfigError

MAX_TEXT_BYTES = 4096  # bytes of a text sent to all processes: a path
PROCESS_GROUP_TIMEOUT = timedelta(hours=12)
Reduction = Literal["fast", "deterministic"]
Values = list[Tensor]  # the loss of some micro-batches, and the gradients


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one run, as `torchrun` starts them."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def is_main(self) -> bool:
        """Tell whether this process writes files and reports."""
        return self.rank == 0

    @classmethod
    def initialize(cls, device: str = "auto") -> "ProcessGroup":
        """Join the other processes where `torchrun` has started several."""
        if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
            return cls()
        cuda = torch.cuda.is_available() and device != "cpu"
        if cuda and device not in ("auto", "cuda"):
            raise ConfigError("hardware.device", want="auto, because each process takes its own GPU", got=device)
        # counts and texts go by gloo on the CPU, so that no step waits for the GPU; a first run may prepare for hours
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PROCESS_GROUP_TIMEOUT)
        processes = cls(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
        if cuda:
            torch.cuda.set_device(processes.local)
        return processes

    def all_reduce(self, values: Tensor) -> Tensor:
        """Add a tensor up over all processes."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def all_gather(self, values: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, alike in shape, by rank."""
        if self.world == 1:
            return [values]
        found = [torch.empty_like(values) for _ in range(self.world)]
        dist.all_gather(found, values.contiguous())
        return found

    def broadcast_text(self, text: str) -> str:
        """Return the main process's text, on all processes."""
        if self.world == 1:
            return text
        data = torch.zeros(MAX_TEXT_BYTES, dtype=torch.uint8)
        if self.is_main:
            raw = text.encode()
            data[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return bytes(data.tolist()).rstrip(b"\0").decode()

    def barrier(self) -> None:
        """Wait for all processes."""
        self.all_reduce(torch.zeros(1))

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process do something before the others."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    def close(self) -> None:
        """Leave the process group."""
        if self.world > 1 and dist.is_initialized():
            gc.collect()  # a wrapper that still held the group could outlive it, and end the process by its threads
            dist.destroy_process_group()

    def data_parallel(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that gradients are averaged over processes during backward (DDP)."""
        if self.world == 1:
            return module
        with warnings.catch_warnings():  # torch 2.13 has a new name for the argument, which older ones do not know
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(module, broadcast_buffers=False)


class PairwiseSum:
    """Pairwise summation: 0+1, 2+3, then 01+23, and so on; one left over waits.

    Sums of 2, 4, 8, ... neighbouring micro-batches are branches of one tree, whichever process makes them. It takes a
    copy of the gradients for each level of the tree.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Values]] = []  # (count, sum) of finished subtrees, counts decreasing

    def add(self, values: Values) -> None:
        """Add the next summand."""
        self._waiting.append((1, values))
        while len(self._waiting) > 1 and self._waiting[-1][0] == self._waiting[-2][0]:
            self._join()

    def total(self) -> Values:
        """Return the sum of all, and start again from none."""
        while len(self._waiting) > 1:
            self._join()
        return self._waiting.pop()[1]

    def _join(self) -> None:
        (count, values), (more, others) = self._waiting[-2:]
        self._waiting[-2:] = [(count + more, [a.add_(b) for a, b in zip(values, others, strict=True)])]


class GradientAccumulation(ABC):
    """Gradient accumulation: sums the losses and gradients of a step's micro-batches."""

    @abstractmethod
    def wrap(self, losses: nn.Module, processes: ProcessGroup) -> nn.Module:
        """Return the module, wrapped where gradients are exchanged during backward."""

    @abstractmethod
    def weight(self, processes: ProcessGroup) -> int:
        """Return the loss scale: DDP averages over ranks, the world size undoes that; `Step` divides by all tokens."""

    @abstractmethod
    def begin(self, device: torch.device) -> None:
        """Reset for a new step."""

    @abstractmethod
    def add(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch after its backward pass."""

    @abstractmethod
    def finish(self, processes: ProcessGroup) -> Tensor:
        """Put the sum of all gradients on the weights, and return that of the losses."""


class FastAccumulation(GradientAccumulation):
    """Gradient accumulation in place: gradients add up on the weights, and processes exchange them during backward."""

    def wrap(self, losses: nn.Module, processes: ProcessGroup) -> nn.Module:
        return processes.data_parallel(losses)

    def weight(self, processes: ProcessGroup) -> int:
        return processes.world  # the wrapper averages over processes, we want the sum

    def begin(self, device: torch.device) -> None:
        self._loss = torch.zeros((), device=device)

    def add(self, loss: Tensor) -> None:
        self._loss = self._loss + loss

    def finish(self, processes: ProcessGroup) -> Tensor:
        return processes.all_reduce(self._loss)


class DeterministicAccumulation(GradientAccumulation):
    """Deterministic gradient accumulation: a pairwise sum over micro-batches and processes, in one order."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]

    def wrap(self, losses: nn.Module, processes: ProcessGroup) -> nn.Module:
        return losses

    def weight(self, processes: ProcessGroup) -> int:
        return 1

    def begin(self, device: torch.device) -> None:
        self._here = PairwiseSum()

    @torch.no_grad()
    def add(self, loss: Tensor) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        self._here.add([loss.clone(), *gradients])

    @torch.no_grad()
    def finish(self, processes: ProcessGroup) -> Tensor:
        loss, *gradients = [pairwise_all_reduce(value, processes) for value in self._here.total()]
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient
        return loss


def pairwise_all_reduce(value: Tensor, processes: ProcessGroup) -> Tensor:
    """Add a tensor up over all processes, by a pairwise sum in the order of their ranks."""
    pairs = PairwiseSum()
    for other in processes.all_gather(value):
        pairs.add([other])
    return pairs.total()[0]
