"""Moving average of weights (EMA), and plain averages of them (Polyak & Juditsky 1992; Merity et al. 2017)."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from heddle.core import Config, ConfigError, Count, Positive, part
from heddle.models.networks import Model


class WeightAverageConfig(Config, ABC):
    """How much of each step's weights goes into the average; before it begins, the average is the weights themselves.

    `steps` counts the good ones, this one included; `begin` is the count after which an average that waits began.
    """

    @abstractmethod
    def share(self, steps: Tensor, begin: Tensor) -> Tensor:
        """Return how far the average moves towards the weights, from 0 to 1."""


@part("moving")
class MovingAverageConfig(WeightAverageConfig):
    """Exponential moving average of weights (EMA), with a faster decay in the first steps.

    decay: share of the average (EMA) that is kept at each step.
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ConfigError("decay", want="between 0 and 1, such as 0.999", got=self.decay)

    def share(self, steps: Tensor, begin: Tensor) -> Tensor:
        return (9 / (10 + steps)).clamp(min=1 - self.decay)


@part("plain")
class PlainAverageConfig(WeightAverageConfig):
    """Take the mean of all steps after one.

    begin: steps before the average begins.
    """

    begin: Count = 0

    def share(self, steps: Tensor, begin: Tensor) -> Tensor:
        return 1 / (steps - self.begin).clamp(min=1)


@part("triggered")
class TriggeredAverageConfig(WeightAverageConfig):
    """Take the mean of all steps since the held-out loss stopped falling (NT-ASGD, Merity et al. 2017).

    It has when it is above the best of those measured more than `patience` validations before it.

    patience: validations that the held-out loss may stay above its best before the average begins.
    """

    patience: Positive = 5

    def share(self, steps: Tensor, begin: Tensor) -> Tensor:
        return 1 / (steps - begin).clamp(min=1)


class WeightAverage:
    """Averaged weights; a skipped step leaves them as they are."""

    def __init__(self, model: Model, config: WeightAverageConfig) -> None:
        self.config, self.names = config, tuple(model.trainable())
        # what is frozen is its own average: the very tensor, not a copy
        self.weights = model.weights() | {name: p.detach().clone() for name, p in model.trainable().items()}
        self.begin = torch.full((), torch.inf, device=next(model.parameters()).device)  # for one that waits

    @torch.no_grad()
    def update(self, model: Model, bad: Tensor, steps: Tensor) -> None:
        """Move the average towards the weights after a step, without synchronizing."""
        share = torch.where(bad, 0.0, self.config.share(steps, self.begin))
        weights = model.weights()
        for name in self.names:
            self.weights[name].lerp_(weights[name], share.to(weights[name].dtype))

    def begin_after(self, steps: float) -> None:
        """Let an average that waits begin after a number of good steps."""
        self.begin.fill_(steps)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load saved averages."""
        for name in self.names:
            self.weights[name].copy_(tensors[name])

    @contextlib.contextmanager
    def in_place(self, model: Model) -> Iterator[None]:
        """Use the averaged weights in the model within the block."""
        weights = model.weights()
        kept = {name: weights[name].clone() for name in self.names}
        for name in self.names:
            weights[name].copy_(self.weights[name])
        try:
            yield
        finally:
            for name in self.names:
                weights[name].copy_(kept[name])
