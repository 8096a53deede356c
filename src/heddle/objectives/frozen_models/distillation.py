"""Knowledge distillation: a student learns the probabilities of a teacher (Hinton et al. 2015; Sanh et al. 2019)."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError, find, part, replace, within
from heddle.core.shapes import Weights
from heddle.data.rows import Batch, RowsConfig, TokenTraits
from heddle.models.networks import Model
from heddle.nn.base import upcast
from heddle.nn.ends import Prediction
from heddle.nn.state import State
from heddle.objectives.objective import (
    Coefficient,
    Loss,
    LossFunction,
    NextTokenConfig,
    ObjectiveConfig,
    SamplingConfig,
    TeacherForcingConfig,
    TokenObjective,
    add_auxiliary_losses,
)

Temperature = Annotated[float, within("above 0", lambda number: number > 0)]


@final
@dataclass(frozen=True)
class DistillationBatch(Batch):
    """A batch as the student's own objective shows it.

    real: 1 for each position at which the teacher's probabilities are learnt: all but padding.
    """

    real: Weights | None = None


@part("distillation")
class DistillationConfig(ObjectiveConfig):
    """Knowledge distillation: learn a teacher's probabilities (soft targets) and last hidden states, beside the text.

    Student and teacher read the same rows, noise included. Held-out rows are measured by the student's own loss alone,
    so that it compares with that of any other run.

    teacher: the model to learn from: a run, a Hugging Face folder or a GGUF file; None: the model that `init` names.
    hard_targets: the student's own objective, on the text: next_token, masked_token or sequence.
    temperature: softmax temperature of both models in the loss of soft targets.
    soft_weight: weight of the KL divergence from the teacher's probabilities, over all real tokens.
    hard_weight: weight of the student's own loss.
    cosine_weight: weight of the cosine loss of the last hidden states; 0 where widths differ.
    """

    teacher: str | None = None
    hard_targets: TokenObjective = NextTokenConfig()
    temperature: Temperature = 2.0
    soft_weight: Coefficient = 5.0
    hard_weight: Coefficient = 2.0
    cosine_weight: Coefficient = 1.0

    predicts_every_token: ClassVar[bool] = False
    frozen_field: ClassVar[str | None] = "teacher"

    def __post_init__(self) -> None:
        super().__post_init__()
        sampling = next(iter(find(self.hard_targets, SamplingConfig)), TeacherForcingConfig())
        if not isinstance(sampling, TeacherForcingConfig):
            want = "none, because the teacher reads the same tokens"
            raise ConfigError("hard_targets.sampling", want=want, got=sampling.kind)
        if not self.soft_weight and not self.cosine_weight:
            raise ConfigError("soft_weight", want="above 0, or cosine_weight above 0, to learn from a teacher", got=0.0)

    @property
    def gives_bits_per_byte(self) -> bool:
        return self.hard_targets.gives_bits_per_byte

    def resolve(self, special: Mapping[str, int], vocab: int) -> "DistillationConfig":
        return replace(self, hard_targets=self.hard_targets.resolve(special, vocab))

    def missing_control_tokens(self, special: Mapping[str, int]) -> tuple[str, ...]:
        return self.hard_targets.missing_control_tokens(special)

    def check_rows(self, rows: RowsConfig) -> None:
        self.hard_targets.check_rows(rows)
        if rows.carries_state:
            raise ConfigError("rows.kind", want="packed, because a teacher carries no state", got=rows.kind)

    def preparer(self, seed: int, traits: Callable[[], TokenTraits]) -> Callable[[Batch], Batch]:
        return partial(_prepared, show=self.hard_targets.preparer(seed, traits))

    def prepare(self, batch: Batch, seed: int) -> DistillationBatch:
        return _prepared(batch, partial(self.hard_targets.prepare, seed=seed))

    def checked_model(self, model: Model) -> Model:
        return self.hard_targets.checked_model(model)

    def check_frozen(self, model: Model, frozen: Model) -> None:
        try:
            self.checked_model(frozen)
        except ConfigError:
            want = f"a model for {self.hard_targets.kind}, as the student is"
            raise ConfigError("objective.teacher", want=want, got=frozen.config.noun) from None
        if frozen.config.sees_next_token and not model.config.sees_next_token:
            want = "a model that sees past tokens only, as the student does"
            raise ConfigError("objective.teacher", want=want, got="one that sees the next token")
        own, given = model.config.width, frozen.config.width
        if self.cosine_weight and own != given:
            want = f"0, because the student's width is {own} and the teacher's {given}"
            raise ConfigError("objective.cosine_weight", want=want, got=self.cosine_weight)

    def loss_function(self, frozen: Model | None = None) -> LossFunction:
        return partial(self._loss, frozen)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        return self._loss(None, model, batch, carried, scheduled)

    def _loss(
        self, teacher: Model | None, model: Model, batch: Batch, carried: State | None, scheduled: Tensor | None
    ) -> Loss:
        if not isinstance(batch, DistillationBatch) or batch.real is None:
            raise ConfigError("batch", want="one made by `prepare`", got=type(batch).__name__)
        hard = self.hard_targets
        hidden, ctx = hard.read(model, batch)
        own = hard.loss_from_hidden(model, hidden, batch, ctx)
        if not model.training:
            return Loss(own)
        if teacher is None:
            raise ConfigError("objective.teacher", want="a model, given to `loss_function`", got=None)
        with torch.no_grad():
            taught, _ = hard.read(teacher, batch)
        total, metrics = self.hard_weight * own, {"hard_loss": own / batch.weights.sum().clamp(min=1)}
        # the trainer divides by the targets of the student's own: so each mean has its weight, whatever the micro-batch
        share, count = hard.target_share(batch.inputs.shape[1]), batch.real.sum().clamp(min=1)
        if self.soft_weight:
            mine, theirs = (
                Prediction(x, hard.logits_function(m), m.vocab or 0) for m, x in ((model, hidden), (teacher, taught))
            )
            soft = (mine.soft_target_loss(theirs, self.temperature) * batch.real).sum()
            total, metrics["soft_loss"] = total + self.soft_weight * share * soft, soft / count
        if self.cosine_weight:
            cosine = ((1 - F.cosine_similarity(upcast(hidden), upcast(taught), dim=-1)) * batch.real).sum()
            total, metrics["cosine_loss"] = total + self.cosine_weight * share * cosine, cosine / count
        loss = add_auxiliary_losses(model, total, batch)
        return dataclasses.replace(loss, metrics={**loss.metrics, **{k: v.detach() for k, v in metrics.items()}})


def _prepared(batch: Batch, show: Callable[[Batch], Batch]) -> DistillationBatch:
    """Return a batch as the student's own objective shows it, with the places that are no padding."""
    made = show(batch)
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    return DistillationBatch(**fields, real=(batch.weights > 0).to(batch.weights.dtype))
