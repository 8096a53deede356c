"""Objectives: what a model is trained to do."""

from heddle.objectives.masked import MaskedTokenConfig
from heddle.objectives.next_token import NextTokenConfig
from heddle.objectives.objective import Loss, ObjectiveConfig, add_auxiliary_losses
from heddle.objectives.sampling import (
    ExponentialSamplingConfig,
    InverseSigmoidSamplingConfig,
    LinearSamplingConfig,
    SamplingConfig,
    TeacherForcingConfig,
)
from heddle.objectives.sequence import SequenceConfig

__all__ = [
    "ExponentialSamplingConfig",
    "InverseSigmoidSamplingConfig",
    "LinearSamplingConfig",
    "Loss",
    "MaskedTokenConfig",
    "NextTokenConfig",
    "ObjectiveConfig",
    "SamplingConfig",
    "SequenceConfig",
    "TeacherForcingConfig",
    "add_auxiliary_losses",
]
