"""Next token: cross-entropy of each token given those before it, with teacher forcing (Bengio et al. 2003)."""

from torch import Tensor

from heddle.core import ConfigError, check_share, part
from heddle.data.rows import Batch
from heddle.models.networks import LanguageModel, Model
from heddle.nn.base import Context
from heddle.nn.state import State
from heddle.objectives.objective import Loss, ObjectiveConfig, add_auxiliary_losses, after_last_target
from heddle.objectives.scheduled_sampling import SamplingConfig, TeacherForcingConfig


@part("next_token")
class NextTokenConfig(ObjectiveConfig):
    """Predict every next token; smoothing mixes in the uniform distribution (Szegedy et al. 2016)."""

    smoothing: float = 0.0
    sampling: SamplingConfig = TeacherForcingConfig()

    def __post_init__(self) -> None:
        check_share(smoothing=self.smoothing)

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
        spare = after_last_target(batch)
        ctx = Context(documents=batch.documents, positions=batch.positions, state=carried, spare=spare)
        hidden, after = model.run(self.sampling.model_inputs(model, batch.inputs, ctx, scheduled), ctx)
        smoothing = self.smoothing if model.training else 0.0
        total = model.head.weighted_nll(hidden, batch.targets, batch.weights, smoothing)
        return add_auxiliary_losses(model, total, batch, after.state)
