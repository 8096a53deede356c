"""Direct preference optimization (DPO, Rafailov et al. 2023): prefer chosen answers, near a reference model."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError, part, within
from heddle.core.shapes import Weights
from heddle.data.rows import Batch, RowsConfig
from heddle.models.networks import LanguageModel, Model, require
from heddle.nn.base import Context
from heddle.nn.state import State
from heddle.objectives.objective import (
    Loss,
    LossFunction,
    ObjectiveConfig,
    add_auxiliary_losses,
    require_language_model,
    with_predictions,
)

Beta = Annotated[float, within("above 0", lambda number: number > 0)]


@final
@dataclass(frozen=True)
class PreferenceBatch(Batch):
    """Rows of two answers side by side, each after the prompt; one weight a row counts the pair.

    answers: 1 for the tokens of answers, 0 for those of prompts and padding.
    """

    answers: Weights | None = None


@part("preference")
class PreferenceConfig(ObjectiveConfig):
    """Direct preference optimization (DPO): -log sigmoid(beta * (log-ratio of the chosen - of the rejected answer)).

    A log-ratio is the summed log-probability of an answer's tokens under the model, less that under the reference, so
    that the loss of a pair is log 2 at the start. The model is trained without dropout, which would move the ratio.

    reference: the frozen reference model: a run, a Hugging Face folder or a GGUF file; None: the model in `init`.
    beta: how strongly the model is held near the reference.
    """

    reference: str | None = None
    beta: Beta = 0.1

    predicts_every_token: ClassVar[bool] = False
    frozen_field: ClassVar[str | None] = "reference"
    trains_with_dropout: ClassVar[bool] = False

    def check_rows(self, rows: RowsConfig) -> None:
        if not rows.compares_answers:
            raise ConfigError("rows.kind", want=f"preferences, because the objective is {self.kind}", got=rows.kind)

    def prepare(self, batch: Batch, seed: int) -> PreferenceBatch:
        """Count pairs instead of tokens: a row has the weight 1, in its first place."""
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        pairs = torch.zeros_like(batch.weights)
        pairs[:, 0] = (batch.weights > 0).any(1)
        return PreferenceBatch(**fields | {"weights": pairs}, answers=batch.weights)

    def checked_model(self, model: Model) -> LanguageModel:
        return require_language_model(model, self)

    def check_frozen(self, model: Model, frozen: Model) -> None:
        refusal = ConfigError("objective.reference", want="a language model", got=frozen.config.noun)
        require(frozen, LanguageModel, refusal)

    def loss_function(self, frozen: Model | None = None) -> LossFunction:
        return partial(self._loss, frozen)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        return self._loss(None, model, batch, carried, scheduled)

    def _loss(
        self, reference: Model | None, model: Model, batch: Batch, carried: State | None, scheduled: Tensor | None
    ) -> Loss:
        model = self.checked_model(model)
        if not isinstance(batch, PreferenceBatch):
            raise ConfigError("batch", want="pairs of answers, made by `prepare`", got=type(batch).__name__)
        if reference is None:
            raise ConfigError("objective.reference", want="a model, given to `loss_function`", got=None)
        with torch.no_grad():
            before = answer_log_probs(require_language_model(reference, self), batch)
        chosen, rejected = (self.beta * (answer_log_probs(model, batch) - before)).chunk(2)
        counted, margin = batch.weights[:, 0], chosen - rejected
        loss = add_auxiliary_losses(model, -(F.logsigmoid(margin) * counted).sum(), batch)
        pairs, margin = counted.sum().clamp(min=1), margin.detach()
        metrics = {
            "reward_accuracy": ((margin > 0) * counted).sum() / pairs,
            "reward_margin": (margin * counted).sum() / pairs,
        }
        loss = dataclasses.replace(loss, metrics={**loss.metrics, **metrics})
        return with_predictions(loss, margin[:, None])

    def prediction_width(self, length: int) -> int:
        return 1

    def metrics(self, predictions: NDArray[np.float32], batches: Sequence[Batch]) -> dict[str, float]:
        """Return how often the chosen answer is ahead, and by how much."""
        return {"reward_accuracy": float((predictions > 0).mean()), "reward_margin": float(predictions.mean())}


def answer_log_probs(model: LanguageModel, batch: PreferenceBatch) -> Float[Tensor, " answers"]:
    """Return the summed log-probability of each answer's tokens: of all that were chosen, then of those rejected."""
    assert batch.answers is not None
    inputs, targets, answers = (torch.cat(t.chunk(2, 1)) for t in (batch.inputs, batch.targets, batch.answers))
    ignored = answers.flip(1).cumsum(1).flip(1) == 0  # after the answer there is padding
    nll = model.head.nll(model(inputs, Context(ignored=ignored)), targets)
    return -(nll * answers).sum(1)
