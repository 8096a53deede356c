"""Sequence to sequence: cross-entropy of each target token given the source and the target before it."""

from torch import Tensor

from heddle.core import ConfigError, check_share, part
from heddle.data.rows import Batch
from heddle.models.networks import EncoderDecoder, Model
from heddle.nn.base import Context
from heddle.nn.state import State
from heddle.objectives.objective import Loss, ObjectiveConfig, add_auxiliary_losses, after_last_target
from heddle.objectives.scheduled_sampling import SamplingConfig, TeacherForcingConfig


@part("sequence")
class SequenceConfig(ObjectiveConfig):
    """Predict every target token, fed with the true ones before it or, by `sampling`, some of the model's own."""

    smoothing: float = 0.0
    sampling: SamplingConfig = TeacherForcingConfig()

    def __post_init__(self) -> None:
        check_share(smoothing=self.smoothing)

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
            raise ConfigError("rows.kind", want="pairs, for sequence to sequence", got="another kind")
        memory = model.encode(batch.source, batch.source_lengths)
        ctx = Context(memory=memory, spare=after_last_target(batch))
        hidden = model(self.sampling.model_inputs(model, batch.inputs, ctx, scheduled), ctx)
        smoothing = self.smoothing if model.training else 0.0
        return add_auxiliary_losses(
            model, model.head.weighted_nll(hidden, batch.targets, batch.weights, smoothing), batch
        )
