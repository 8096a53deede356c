"""Sums: gradients of micro-batches added up in pairs, in one order for any number of processes (the bits agree)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heddle.training.parallel import Team

Values = list[Tensor]  # the loss of some micro-batches, and the gradients


class Pairs:
    """Adds neighbours, then neighbouring sums, and so on: 0+1, 2+3, then 01+23; one left over waits for its turn.

    Sums of 2, 4, 8, ... micro-batches that stand side by side are branches of one tree, whoever makes them. It takes a
    copy of the gradients for each level of the tree.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Values]] = []  # how many went in, and their sum; ever fewer

    def add(self, values: Values, count: int = 1) -> None:
        """Take what comes next in the order."""
        self._waiting.append((count, values))
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


class FixedSums:
    """Takes the gradients that each micro-batch leaves on the weights, and puts the sum over all processes there."""

    def __init__(self, parameters: Sequence[nn.Parameter], team: Team) -> None:
        self.parameters, self.team = [p for p in parameters if p.requires_grad], team
        self._here = Pairs()

    @torch.no_grad()
    def add(self, loss: Tensor) -> None:
        """Take a micro-batch's loss and gradients, which leave the weights."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        self._here.add([loss.clone(), *gradients])

    @torch.no_grad()
    def finish(self) -> Tensor:
        """Put the sum of all gradients on the weights, and return that of the losses."""
        loss, *gradients = [self._over_all(value) for value in self._here.total()]
        for p, gradient in zip(self.parameters, gradients, strict=True):
            p.grad = gradient
        return loss

    def _over_all(self, value: Tensor) -> Tensor:
        pairs = Pairs()
        for other in self.team.gather(value):
            pairs.add([other])
        return pairs.total()[0]
