"""Objectives: what a model is trained to do."""

from heddle.objectives.masked_token import MaskedTokenConfig
from heddle.objectives.next_token import NextTokenConfig
from heddle.objectives.objective import Loss, ObjectiveConfig, add_auxiliary_losses
from heddle.objectives.scheduled_sampling import (
    ExponentialSamplingConfig,
    InverseSigmoidSamplingConfig,
    LinearSamplingConfig,
    SamplingConfig,
    TeacherForcingConfig,
)
from heddle.objectives.sequence_to_sequence import SequenceConfig
