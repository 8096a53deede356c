"""Objectives: model and batch to a loss; next-token and sequence-to-sequence prediction with teacher forcing.

A loss is summed over tokens with a loss weight; the trainer divides once, by the tokens of the whole step.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from heddle.core import Config, ConfigError, Share, part
from heddle.core.shapes import Ids
from heddle.data.rows import Batch
from heddle.models.networks import AutoregressiveModel, EncoderDecoder, LanguageModel, Model
from heddle.nn.base import Context
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
    predicts_every_token: ClassVar[bool] = True  # whether each is predicted once: the loss gives bits per byte

    @abstractmethod
    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        """Return the loss of one micro-batch; padding never counts; `scheduled` is its `scheduled_value`."""

    def checked_model(self, model: Model) -> Model:
        """Return the model, or raise where it cannot be trained for this objective."""
        return model

    def scheduled_value(self, step: int, steps: int) -> float | None:
        """Return the number that this objective changes over training, if any: the share of sampled inputs, say."""
        return None

    def resolve(self, special: Mapping[str, int], vocab: int) -> "ObjectiveConfig":
        """Return the objective with what depends on the run's tokenizer: ids of control tokens, its size."""
        return self

    def prepare(self, batch: Batch, seed: int) -> Batch:
        """Return what the model is shown of a batch; noise is drawn here, keyed by row, and weights then count it."""
        return batch


def after_last_target(batch: Batch) -> Tensor:
    """Tell which inputs come after their row's last target, so that no loss depends on them."""
    return batch.weights.flip(1).cumsum(1).flip(1) == 0


def add_auxiliary_losses(model: Model, total: Tensor, batch: Batch, carried: State | None = None) -> Loss:
    """Return a loss with the auxiliary losses and the metrics of the model's parts."""
    penalty = model.auxiliary_loss()
    if penalty is not None:
        total = total + penalty * batch.weights.count_nonzero()
    return Loss(total, model.metrics(), carried)


class SamplingConfig(Config, ABC):
    """Which tokens a model reads in training: the true ones, or some of its own."""

    @abstractmethod
    def share_at(self, step: int, steps: int) -> float | None:
        """Return the share of the model's own tokens at a step; None: never any."""

    @abstractmethod
    def model_inputs(self, model: AutoregressiveModel, inputs: Ids, ctx: Context, share: Tensor | None) -> Ids:
        """Return what the model reads instead of these inputs; the context is that of the pass to come."""


@part("none")
class TeacherForcingConfig(SamplingConfig):
    """Teacher forcing: the model always reads the true tokens (Williams & Zipser 1989)."""

    def share_at(self, step: int, steps: int) -> float | None:
        return None

    def model_inputs(self, model: AutoregressiveModel, inputs: Ids, ctx: Context, share: Tensor | None) -> Ids:
        return inputs


@part("next_token")
class NextTokenConfig(ObjectiveConfig):
    """Next-token prediction (Bengio et al. 2003), with label smoothing (Szegedy et al. 2016).

    smoothing: label smoothing: share of each target's probability that is spread over all tokens.
    sampling: scheduled sampling: how often the model reads its own predictions in training.
    """

    smoothing: Share = 0.0
    sampling: SamplingConfig = TeacherForcingConfig()

    def scheduled_value(self, step: int, steps: int) -> float | None:
        return self.sampling.share_at(step, steps)

    def checked_model(self, model: Model) -> LanguageModel:
        if not isinstance(model, LanguageModel):
            raise ConfigError("objective", want="a language model for next_token", got=type(model).__name__)
        return model

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        model = self.checked_model(model)
        ignored = after_last_target(batch)
        ctx = Context(documents=batch.documents, positions=batch.positions, state=carried, ignored=ignored)
        hidden, after = model.run(self.sampling.model_inputs(model, batch.inputs, ctx, scheduled), ctx)
        smoothing = self.smoothing if model.training else 0.0
        total = model.head.weighted_nll(hidden, batch.targets, batch.weights, smoothing)
        return add_auxiliary_losses(model, total, batch, after.state)


@part("sequence")
class SequenceConfig(ObjectiveConfig):
    """Sequence-to-sequence prediction: each target token given the source and the target before it.

    smoothing: label smoothing: share of each target's probability that is spread over all tokens.
    sampling: scheduled sampling: how often the model reads its own predictions in training.
    """

    smoothing: Share = 0.0
    sampling: SamplingConfig = TeacherForcingConfig()

    def scheduled_value(self, step: int, steps: int) -> float | None:
        return self.sampling.share_at(step, steps)

    def checked_model(self, model: Model) -> EncoderDecoder:
        if not isinstance(model, EncoderDecoder):
            raise ConfigError("objective", want="an encoder-decoder for sequence", got=type(model).__name__)
        return model

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        model = self.checked_model(model)
        if batch.source is None:
            raise ConfigError(
                "rows.kind", want="pairs, because the objective is sequence to sequence", got="another kind"
            )
        memory = model.encode(batch.source, batch.source_lengths)
        ctx = Context(memory=memory, ignored=after_last_target(batch))
        hidden = model(self.sampling.model_inputs(model, batch.inputs, ctx, scheduled), ctx)
        smoothing = self.smoothing if model.training else 0.0
        loss = model.head.weighted_nll(hidden, batch.targets, batch.weights, smoothing)
        return add_auxiliary_losses(model, loss, batch)
