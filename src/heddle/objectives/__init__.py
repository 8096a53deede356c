"""Objectives: what a model is trained to do."""

from heddle.objectives.masked_token import MaskedTokenConfig
from heddle.objectives.objective import (
    PURPOSES,
    Loss,
    NextTokenConfig,
    ObjectiveConfig,
    SamplingConfig,
    SequenceConfig,
    TeacherForcingConfig,
    add_auxiliary_losses,
)
from heddle.objectives.scheduled_sampling import (
    ExponentialSamplingConfig,
    InverseSigmoidSamplingConfig,
    LinearSamplingConfig,
)
from heddle.objectives.span_corruption import SpanCorruptionConfig
