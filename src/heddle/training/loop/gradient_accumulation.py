"""Sums: how micro-batches of all processes add up: as they come, or in pairs, in one order (then the bits agree)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heddle.training.loop.parallel import ProcessGroup

Values = list[Tensor]  # the loss of some micro-batches, and the gradients


class PairwiseSum:
    """Adds neighbours, then neighbouring sums, and so on: 0+1, 2+3, then 01+23; one left over waits for its turn.

    Sums of 2, 4, 8, ... micro-batches that stand side by side are branches of one tree, whoever makes them. It takes a
    copy of the gradients for each level of the tree.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Values]] = []  # how many went in, and their sum; ever fewer

    def add(self, values: Values) -> None:
        """Take what comes next in the order."""
        self._waiting.append((1, values))
        while len(self._waiting) > 1 and self._waiting[-1][0] == self._waiting[-2][0]:
            self._join()

    def total(self) -> Values:
        """Return the sum of all, and forget them."""
        while len(self._waiting) > 1:
            self._join()
        return self._waiting.pop()[1]

    def _join(self) -> None:
        (count, values), (more, others) = self._waiting[-2:]
        self._waiting[-2:] = [(count + more, [a.add_(b) for a, b in zip(values, others, strict=True)])]


class GradientAccumulation(ABC):
    """Adds up what the micro-batches of a step give: losses, and the gradients that each leaves on the weights."""

    @abstractmethod
    def wrap(self, losses: nn.Module, processes: ProcessGroup) -> nn.Module:
        """Return the losses as processes exchange their gradients."""

    @abstractmethod
    def weight(self, processes: ProcessGroup) -> int:
        """Return by what a loss is multiplied, so that gradients add up to the sum over all processes."""

    @abstractmethod
    def begin(self, device: torch.device) -> None:
        """Begin a step with nothing."""

    @abstractmethod
    def add(self, loss: Tensor) -> None:
        """Take a micro-batch that has gone there and back."""

    @abstractmethod
    def finish(self, processes: ProcessGroup) -> Tensor:
        """Leave the sum of all gradients on the weights, and return that of the losses."""


class FastAccumulation(GradientAccumulation):
    """Lets gradients add up on the weights as they come, and processes exchange them while they are computed."""

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
    """Takes the gradients that each micro-batch leaves on the weights, and puts the sum over all processes there."""

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
        loss, *gradients = [_reduce_all(value, processes) for value in self._here.total()]
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient
        return loss


def _reduce_all(value: Tensor, processes: ProcessGroup) -> Tensor:
    pairs = PairwiseSum()
    for other in processes.all_gather(value):
        pairs.add([other])
    return pairs.total()[0]
