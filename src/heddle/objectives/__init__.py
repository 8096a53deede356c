"""Objectives: what a model is trained to do."""

from heddle.objectives.answer_span import SpanConfig
from heddle.objectives.classify import ClassifyConfig
from heddle.objectives.contrastive import ContrastiveConfig
from heddle.objectives.masked_token import MaskedTokenConfig
from heddle.objectives.objective import (
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
from heddle.objectives.similarity import SimilarityConfig
from heddle.objectives.tag import TagConfig
