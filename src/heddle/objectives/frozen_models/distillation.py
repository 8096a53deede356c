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

TeacherTargets = tuple[Tensor, Tensor | None, Tensor | None]  # log-probabilities, their ids, hidden states
Temperature = Annotated[float, within("above 0", lambda number: number > 0)]


@final
@dataclass(frozen=True)
class DistillationBatch(Batch):
    """A batch as the student's own objective shows it.

    real: 1 for each position at which the teacher's probabilities are learnt: all but padding.
    stored: the teacher's stored log-probabilities; None: it is asked in each step.
    stored_ids: the ids that they belong to, and then the rest; None: all ids.
    stored_hidden: the teacher's stored last hidden states.
    """

    real: Weights | None = None
    stored: Tensor | None = None
    stored_ids: Tensor | None = None
    stored_hidden: Tensor | None = None


@part("distillation")
class DistillationConfig(ObjectiveConfig):
    """Knowledge distillation: learn a teacher's probabilities (soft targets) and last hidden states, beside the text.

    Student and teacher read the same rows, noise included. Held-out rows are measured by the student's own loss alone,
    so that it compares with that of any other run.

    teacher: the model to learn from, or a folder of its outputs, stored by `heddle data teach`; None: that of `init`.
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
        try:
            return self.hard_targets.checked_model(model)
        except ConfigError:
            own = "sequence" if model.reads_source else "next_token" if model.can_generate else "masked_token"
            if own == self.hard_targets.kind:
                raise
            want = f"{own}, because the student is {model.config.noun}"
            raise ConfigError("objective.hard_targets", want=want, got=self.hard_targets.kind) from None

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
        taught = self._taught(teacher, batch)
        total, metrics = self.hard_weight * own, {"hard_loss": own / batch.weights.sum().clamp(min=1)}
        # the trainer divides by the targets of the student's own: so each mean has its weight, whatever the micro-batch
        share, count = hard.target_share(batch.inputs.shape[1]), batch.real.sum().clamp(min=1)
        if self.soft_weight:
            mine = Prediction(hidden, hard.logits_function(model), model.vocab or 0)
            soft = (self._soft_losses(mine, teacher, taught, batch) * batch.real).sum()
            total, metrics["soft_loss"] = total + self.soft_weight * share * soft, soft / count
        if self.cosine_weight:
            assert taught is not None
            cosine = ((1 - F.cosine_similarity(upcast(hidden), upcast(taught), dim=-1)) * batch.real).sum()
            total, metrics["cosine_loss"] = total + self.cosine_weight * share * cosine, cosine / count
        loss = add_auxiliary_losses(model, total, batch)
        return dataclasses.replace(loss, metrics={**loss.metrics, **{k: v.detach() for k, v in metrics.items()}})

    def _taught(self, teacher: Model | None, batch: DistillationBatch) -> Tensor | None:
        """Return the teacher's last hidden states, stored or new."""
        if batch.stored is not None:
            return batch.stored_hidden
        if teacher is None:
            raise ConfigError("objective.teacher", want="a model, given to `loss_function`", got=None)
        with torch.no_grad():
            return self.hard_targets.read(teacher, batch)[0]

    def _soft_losses(
        self, mine: Prediction, teacher: Model | None, taught: Tensor | None, batch: DistillationBatch
    ) -> Tensor:
        """Return the loss of soft targets at each position."""
        if batch.stored is not None:
            return mine.stored_target_loss(batch.stored, batch.stored_ids, self.temperature)
        assert teacher is not None and taught is not None
        theirs = Prediction(taught, self.hard_targets.logits_function(teacher), teacher.vocab or 0)
        return mine.soft_target_loss(theirs, self.temperature)

    @torch.no_grad()
    def outputs_of(self, teacher: Model, batch: DistillationBatch, vocab: int, top_k: int | None) -> TeacherTargets:
        """Return what a teacher says to the real positions of a batch, in order: what is stored of it."""
        if batch.real is None:
            raise ConfigError("batch", want="one made by `prepare`", got=type(batch).__name__)
        hidden = self.hard_targets.read(teacher, batch)[0][batch.real > 0]
        theirs = Prediction(hidden[None], self.hard_targets.logits_function(teacher), teacher.vocab or 0)
        logprobs, ids = theirs.soft_targets(self.temperature, vocab, top_k)
        return logprobs[0], None if ids is None else ids[0], hidden if self.cosine_weight else None


def _prepared(batch: Batch, show: Callable[[Batch], Batch]) -> DistillationBatch:
    """Return a batch as the student's own objective shows it, with the places that are no padding."""
    made = show(batch)
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    return DistillationBatch(**fields, real=(batch.weights > 0).to(batch.weights.dtype))
