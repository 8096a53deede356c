"""Parallel: data parallel on PyTorch's own engine, applied from outside the model; one process is a team of one."""

import gc
import os
import warnings
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heddle.core import ConfigError

LONGEST = 4096  # bytes of a text told to all: a path
PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one run, as `torchrun` starts them."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def is_main(self) -> bool:
        """Tell whether this process writes files and speaks."""
        return self.rank == 0

    @classmethod
    def initialize(cls, device: str = "auto") -> "ProcessGroup":
        """Join the others where `torchrun` has set the stage."""
        if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
            return cls()
        cuda = torch.cuda.is_available() and device != "cpu"
        if cuda and device not in ("auto", "cuda"):
            raise ConfigError("hardware.device", want="auto, for each process takes a GPU of its own", got=device)
        # counts and texts go by gloo on the CPU, so that no step waits for the GPU; a first run may prepare for hours
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
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
        """Return the leading process's text, on all of them."""
        if self.world == 1:
            return text
        data = torch.zeros(LONGEST, dtype=torch.uint8)
        if self.is_main:
            raw = text.encode()
            data[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return bytes(data.tolist()).rstrip(b"\0").decode()

    def barrier(self) -> None:
        """Wait until all are here."""
        self.all_reduce(torch.zeros(1))

    def close(self) -> None:
        """Part from the others."""
        if self.world > 1 and dist.is_initialized():
            gc.collect()  # a wrapper that still held the group could outlive it, and end the process by its threads
            dist.destroy_process_group()

    def data_parallel(self, module: nn.Module) -> nn.Module:
        """Let gradients be averaged over all processes while they are computed."""
        if self.world == 1:
            return module
        with warnings.catch_warnings():  # torch 2.13 has a new name for the argument, which older ones do not know
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(module, broadcast_buffers=False)
