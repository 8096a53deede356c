"""Objectives: what a model is trained to do."""

from heddle.objectives.answer_span import SpanConfig
from heddle.objectives.classify import ClassifyConfig
from heddle.objectives.contrastive import ContrastiveConfig
from heddle.objectives.denoising import DenoisingConfig
from heddle.objectives.frames import CtcAttentionConfig, CtcConfig
from heddle.objectives.frozen_models import DistillationBatch, DistillationConfig, PreferenceConfig
from heddle.objectives.masked_token import MaskedTokenConfig
from heddle.objectives.mixture import MixedObjectiveConfig, MixtureConfig
from heddle.objectives.noises import (
    DocumentRotationConfig,
    NoiseConfig,
    SentencePermutationConfig,
    TextInfillingConfig,
    TokenDeletionConfig,
    TokenMaskingConfig,
    TokenView,
)
from heddle.objectives.objective import (
    OPTIONAL_PURPOSES,
    PURPOSES,
    Loss,
    LossFunction,
    NextTokenConfig,
    ObjectiveConfig,
    SamplingConfig,
    SequenceConfig,
    TeacherForcingConfig,
    add_auxiliary_losses,
)
from heddle.objectives.prefix_lm import PrefixLMConfig
from heddle.objectives.replaced_token import ReplacedTokenConfig
from heddle.objectives.scheduled_sampling import (
    ExponentialSamplingConfig,
    InverseSigmoidSamplingConfig,
    LinearSamplingConfig,
)
from heddle.objectives.sentence_pairs import NextSentenceConfig, SentenceOrderConfig
from heddle.objectives.similarity import SimilarityConfig
from heddle.objectives.span_corruption import SpanCorruptionConfig
from heddle.objectives.tag import TagConfig
