"""Objective: model + batch -> loss, summed over the tokens that count; the trainer divides once, by the step's."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from heddle.core import Config
from heddle.data import Batch
from heddle.models import Model
from heddle.nn import State


@dataclass(frozen=True)
class Loss:
    """A sum in nats over the targets that count, and what else a step should know."""

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)  # sums as well, for the metrics only
    carried: State | None = None  # what the model remembers for the next batch of the same streams


class ObjectiveConfig(Config, ABC):
    """What a model is trained to do."""

    @abstractmethod
    def __call__(self, model: Model, batch: Batch, carried: State | None = None) -> Loss:
        """Return the loss of one micro-batch; padding never counts."""
