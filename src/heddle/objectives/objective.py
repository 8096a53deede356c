"""Objective: model + batch -> loss, summed over the tokens that count; the trainer divides once, by the step's."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from heddle.core import Config
from heddle.data.rows import Batch
from heddle.models.networks import Model
from heddle.nn.state import State


@dataclass(frozen=True)
class Loss:
    """A sum in nats over the targets that count, and what else a step should know."""

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # for the metrics only
    carried: State | None = None  # what the model remembers for the next batch of the same streams


class ObjectiveConfig(Config, ABC):
    """What a model is trained to do."""

    control_tokens: ClassVar[tuple[str, ...]] = ()  # control tokens that the run's tokenizer must have
    predicts_every_token: ClassVar[bool] = (
        True  # whether every token is told once, so that a loss is also bits per byte
    )

    @abstractmethod
    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        """Return the loss of one micro-batch; padding never counts. `dial` is what `dial_at` said of this step."""

    def checked_model(self, model: Model) -> Model:
        """Return the model, or say that it cannot be trained to do this."""
        return model

    def scheduled_value(self, step: int, steps: int) -> float | None:
        """Return the number that this objective changes over training, if any: the share of sampled inputs, say."""
        return None

    def resolve(self, special: Mapping[str, int], vocab: int) -> "ObjectiveConfig":
        """Return the objective with what only the run's tokenizer can tell: ids of control tokens, its size."""
        return self

    def prepare(self, batch: Batch, seed: int) -> Batch:
        """Return what the model is shown of a batch; noise is drawn here, keyed by row, and weights then count it."""
        return batch


def after_last_target(batch: Batch) -> Tensor:
    """Tell which inputs lie behind their row's last target, so that no loss depends on them."""
    return batch.weights.flip(1).cumsum(1).flip(1) == 0


def add_auxiliary_losses(model: Model, total: Tensor, batch: Batch, carried: State | None = None) -> Loss:
    """Return a loss with what the model's parts add to it, and the figures that they show."""
    penalty = model.auxiliary_loss()
    if penalty is not None:
        total = total + penalty * batch.weights.count_nonzero()
    return Loss(total, model.metrics(), carried)
