"""Objectives: model and batch to a loss; next-token and sequence-to-sequence prediction with teacher forcing.

A loss is summed over tokens with a loss weight; the trainer divides once, by the tokens of the whole step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heddle.core import Config, ConfigError, Share, part, within
from heddle.core.shapes import Ids, Stream
from heddle.data.rows import Batch, RowsConfig, TokenTraits
from heddle.data.shards import LabelSet
from heddle.data.sources import LabelKind
from heddle.models.networks import AutoregressiveModel, EncoderDecoder, LanguageModel, Model, NetworkConfig
from heddle.nn.base import Context
from heddle.nn.state import State

# Ids that `resolve` finds by their purpose, whatever the tokenizer calls them, beside its control tokens by name.
PURPOSES = END, DECODER_START = "end", "decoder_start"
# The same for ids that only some tokenizers have: BART's source begins with one, and its target with a second one.
SOURCE_BEGIN, DECODER_SECOND = "source_begin", "decoder_second"
OPTIONAL_PURPOSES = (SOURCE_BEGIN, DECODER_SECOND)

Coefficient = Annotated[float, within("at least 0", lambda number: number >= 0)]


@dataclass(frozen=True)
class Loss:
    """A sum in nats over the targets that count, and what else a step should know."""

    total: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # for the metrics only
    carried: State | None = None  # what the model remembers for the next batch of the same streams
    predictions: Tensor | None = None  # of each row, in validation; `ObjectiveConfig.metrics` grades them


LossFunction = Callable[[Model, Batch, State | None, Tensor | None], Loss]  # as `ObjectiveConfig.__call__` is


class ObjectiveConfig(Config, ABC):
    """What a model is trained to do."""

    control_tokens: ClassVar[tuple[str, ...]] = ()  # control tokens that the run's tokenizer must have
    predicts_every_token: ClassVar[bool] = True  # whether each is predicted once: the loss gives bits per byte
    reads_examples: ClassVar[bool] = False  # whether rows are labelled texts, each an example
    label_kind: ClassVar[LabelKind | None] = None  # what documents must be labelled with
    new_weights: ClassVar[tuple[str, ...]] = ()  # prefixes of the names of weights that learn beside adapters
    verb: ClassVar[str | None] = None  # the command that uses a model trained so, where it is not one that generates
    batch_is_unit: ClassVar[bool] = False  # whether the loss of a row depends on the others of its batch
    makes_source: ClassVar[bool] = False  # whether `prepare` makes source and target of each row of plain text
    frozen_field: ClassVar[str | None] = None  # the field that names a frozen model beside the trained one: a teacher
    reads_media: ClassVar[bool] = False  # whether the source of a row may be a sound or the like
    trains_with_dropout: ClassVar[bool] = True  # whether the model is trained with dropout, where it has any

    @abstractmethod
    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        """Return the loss of one micro-batch; padding never counts; `scheduled` is its `scheduled_value`."""

    def checked_model(self, model: Model) -> Model:
        """Return the model, or raise where it cannot be trained for this objective."""
        return model

    @property
    def gives_bits_per_byte(self) -> bool:
        """Tell whether the held-out loss counts each token of a text once."""
        return self.predicts_every_token

    def target_share(self, length: int) -> float:
        """Return the share of the positions of a full row whose targets count."""
        return 1.0

    def loss_function(self, frozen: Model | None = None) -> LossFunction:
        """Return the loss as a function of model and batch, with the frozen model that `frozen_field` names."""
        return self

    def check_frozen(self, model: Model, frozen: Model) -> None:
        """Refuse a frozen model that does not fit the trained one, by the field to set; neither needs weights."""
        return None

    def scheduled_value(self, step: int, steps: int) -> float | None:
        """Return the number that this objective changes over training, if any: the share of sampled inputs, say."""
        return None

    def resolve(self, special: Mapping[str, int], vocab: int) -> "ObjectiveConfig":
        """Return the objective with what depends on the run's tokenizer: ids of control tokens, its size."""
        return self

    def prepare(self, batch: Batch, seed: int) -> Batch:
        """Return what the model is shown of a batch; noise is drawn here, keyed by row, and weights then count it."""
        return batch

    def with_labels(self, labels: LabelSet) -> "ObjectiveConfig":
        """Return the objective with the labels of the training data, where it learns any."""
        return self

    def model_for(self, config: NetworkConfig) -> NetworkConfig:
        """Return the network with the output that this objective trains, where it is one of its own."""
        return config

    def prediction_width(self, length: int) -> int:
        """Return how many numbers a prediction has for a row of at most this length; 0: there are none to grade."""
        return 0

    def metrics(self, predictions: NDArray[np.float32], batches: Sequence[Batch]) -> dict[str, float]:
        """Return metrics of the predictions for all rows of some batches; the first is the one that matters most."""
        return {}

    def preparer(self, seed: int, traits: Callable[[], TokenTraits]) -> Callable[[Batch], Batch]:
        """Return `prepare` with its seed and, for noise of words or sentences, facts about the tokenizer's ids."""
        return partial(self.prepare, seed=seed)

    def check_rows(self, rows: RowsConfig) -> None:
        """Refuse rows that cannot serve this objective, by the field to set."""
        if rows.reads_media and not self.reads_media:
            kinds = "classify" if rows.labelled else "sequence, ctc or ctc_attention"
            want = f"{kinds}, because the rows are media with {'labels' if rows.labelled else 'texts'}"
            raise ConfigError("objective.kind", want=want, got=self.kind)
        if rows.compares_answers:
            raise ConfigError("objective.kind", want="preference, because the rows are pairs of answers", got=self.kind)
        if rows.second_text is not None:
            raise ConfigError("rows.kind", want=f"packed, because {self.kind} reads one text a row", got=rows.kind)
        if self.makes_source and (rows.paired or rows.carries_state):
            raise ConfigError("rows.kind", want=f"packed, because {self.kind} reads plain text", got=rows.kind)
        if self.makes_source and rows.separates_documents:
            raise ConfigError(
                "rows.boundaries", want=f"stream, because {self.kind} makes one source of a row", got="reset"
            )

    def side_lengths(self, length: int) -> tuple[int, int]:
        """Return how many tokens of source and target the model is shown of a row of this length."""
        return length, length

    def model_length(self, length: int) -> int:
        """Return the most tokens of either side that the model is shown of a row of this length."""
        return max(self.side_lengths(length))

    def command(self) -> str | None:
        """Return the command that uses a model trained so, where it is not one that generates."""
        return self.verb

    def source_prefix(self, own: str) -> str:
        """Return the text before each source, which may be the one that a model has of its `own` for summaries."""
        return ""

    def missing_control_tokens(self, special: Mapping[str, int]) -> tuple[str, ...]:
        """Return the control tokens that a tokenizer with these lacks."""
        return tuple(name for name in self.control_tokens if name not in special)


class TokenObjective(ObjectiveConfig, ABC):
    """An objective that predicts tokens from the last hidden states of one pass, which a teacher's compare with."""

    @abstractmethod
    def read(self, model: Model, batch: Batch) -> tuple[Stream, Context]:
        """Return the last hidden states of a prepared batch, and their context."""

    @abstractmethod
    def loss_from_hidden(self, model: Model, hidden: Stream, batch: Batch, ctx: Context) -> Tensor:
        """Return the loss of the targets that count, from what `read` returned."""

    @abstractmethod
    def logits_function(self, model: Model) -> Callable[[Tensor], Tensor]:
        """Return the function by which hidden states become logits."""


def control_ids(special: Mapping[str, int]) -> tuple[int, ...]:
    """Return the ids of all control tokens in order."""
    return tuple(sorted(set(special.values())))


def real_lengths(batch: Batch) -> NDArray[np.int64]:
    """Count the tokens of each row of plain text up to its last target that counts: what follows is padding."""
    counted = batch.weights.numpy() > 0
    length = counted.shape[1]
    return np.where(counted.any(1), length - counted[:, ::-1].argmax(1), 0)


def after_last_target(batch: Batch) -> Tensor:
    """Tell which inputs come after their row's last target, so that no loss depends on them."""
    return batch.weights.flip(1).cumsum(1).flip(1) == 0


def add_auxiliary_losses(model: Model, total: Tensor, batch: Batch, carried: State | None = None) -> Loss:
    """Return a loss with the auxiliary losses and the metrics of the model's parts."""
    penalty = model.auxiliary_loss()
    if penalty is not None:
        total = total + penalty * batch.weights.count_nonzero()
    return Loss(total, model.metrics(), carried)


def with_predictions(loss: Loss, predictions: Tensor) -> Loss:
    """Return a loss with what the model predicts, a row of numbers for each row of the batch."""
    return replace(loss, predictions=predictions.float())


def require_language_model(model: Model, objective: ObjectiveConfig) -> LanguageModel:
    """Return the model as a language model, or refuse it."""
    if not isinstance(model, LanguageModel):
        raise ConfigError("objective", want=f"a language model for {objective.kind}", got=type(model).__name__)
    return model


def require_encoder_decoder(model: Model, objective: ObjectiveConfig) -> EncoderDecoder:
    """Return the model as an encoder-decoder, or refuse it."""
    if not isinstance(model, EncoderDecoder):
        raise ConfigError("objective", want=f"an encoder-decoder for {objective.kind}", got=type(model).__name__)
    return model


def sequence_loss(model: EncoderDecoder, batch: Batch, smoothing: float, z_loss: float) -> Loss:
    """Return the loss of each target token, given the source and the target before it (teacher forcing)."""
    assert batch.source is not None
    memory = model.encode(batch.source, batch.source_lengths)
    hidden = model(batch.inputs, Context(memory=memory, ignored=after_last_target(batch)))
    return add_auxiliary_losses(model, head_loss(model, hidden, batch, smoothing, z_loss), batch)


def head_loss(model: AutoregressiveModel, hidden: Stream, batch: Batch, smoothing: float, z_loss: float) -> Tensor:
    """Return the sum of the targets' losses; label smoothing and z-loss are for training only."""
    if not model.training:
        smoothing = z_loss = 0.0
    more = (z_loss,) if z_loss else ()
    return model.head.weighted_nll(hidden, batch.targets, batch.weights, smoothing, *more)


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
class NextTokenConfig(TokenObjective):
    """Next-token prediction (Bengio et al. 2003), with label smoothing (Szegedy et al. 2016).

    smoothing: label smoothing: share of each target's probability that is spread over all tokens.
    z_loss: coefficient of the square of the softmax's log-normalizer, which keeps logits small; 0: none.
    sampling: scheduled sampling: how often the model reads its own predictions in training.
    """

    smoothing: Share = 0.0
    z_loss: Coefficient = 0.0
    sampling: SamplingConfig = TeacherForcingConfig()

    def scheduled_value(self, step: int, steps: int) -> float | None:
        return self.sampling.share_at(step, steps)

    def checked_model(self, model: Model) -> LanguageModel:
        return require_language_model(model, self)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        model = self.checked_model(model)
        ignored = after_last_target(batch)
        ctx = Context(documents=batch.documents, positions=batch.positions, state=carried, ignored=ignored)
        hidden, after = model.run(self.sampling.model_inputs(model, batch.inputs, ctx, scheduled), ctx)
        total = head_loss(model, hidden, batch, self.smoothing, self.z_loss)
        return add_auxiliary_losses(model, total, batch, after.state)

    def read(self, model: Model, batch: Batch) -> tuple[Stream, Context]:
        ctx = Context(documents=batch.documents, positions=batch.positions, ignored=after_last_target(batch))
        return self.checked_model(model).run(batch.inputs, ctx)

    def loss_from_hidden(self, model: Model, hidden: Stream, batch: Batch, ctx: Context) -> Tensor:
        return head_loss(self.checked_model(model), hidden, batch, self.smoothing, self.z_loss)

    def logits_function(self, model: Model) -> Callable[[Tensor], Tensor]:
        return self.checked_model(model).head.logits


@part("sequence")
class SequenceConfig(TokenObjective):
    """Sequence-to-sequence prediction: each target token given the source and the target before it.

    smoothing: label smoothing: share of each target's probability that is spread over all tokens.
    z_loss: coefficient of the square of the softmax's log-normalizer, which keeps logits small; 0: none.
    sampling: scheduled sampling: how often the model reads its own predictions in training.
    prefix: text before each source, which the run's tokenizer keeps; `auto`: T5's for summaries, if `init` has one.
    """

    smoothing: Share = 0.0
    z_loss: Coefficient = 0.0
    sampling: SamplingConfig = TeacherForcingConfig()
    prefix: str = ""

    reads_media: ClassVar[bool] = True

    def command(self) -> str | None:
        return "summarize" if self.prefix == "auto" else self.verb

    def source_prefix(self, own: str) -> str:
        return own if self.prefix == "auto" else self.prefix

    def scheduled_value(self, step: int, steps: int) -> float | None:
        return self.sampling.share_at(step, steps)

    def checked_model(self, model: Model) -> EncoderDecoder:
        return require_encoder_decoder(model, self)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        model = self.checked_model(model)
        ctx = self._context(model, batch)
        hidden = model(self.sampling.model_inputs(model, batch.inputs, ctx, scheduled), ctx)
        loss = head_loss(model, hidden, batch, self.smoothing, self.z_loss)
        return add_auxiliary_losses(model, loss, batch)

    def _context(self, model: EncoderDecoder, batch: Batch) -> Context:
        """Return what the decoder sees: the source, read."""
        if batch.source is None:
            raise ConfigError(
                "rows.kind", want="pairs, because the objective is sequence to sequence", got="another kind"
            )
        memory = model.encode(batch.source, batch.source_lengths)
        return Context(memory=memory, ignored=after_last_target(batch))

    def read(self, model: Model, batch: Batch) -> tuple[Stream, Context]:
        checked = self.checked_model(model)
        return checked.run(batch.inputs, self._context(checked, batch))

    def loss_from_hidden(self, model: Model, hidden: Stream, batch: Batch, ctx: Context) -> Tensor:
        return head_loss(self.checked_model(model), hidden, batch, self.smoothing, self.z_loss)

    def logits_function(self, model: Model) -> Callable[[Tensor], Tensor]:
        return self.checked_model(model).head.logits
