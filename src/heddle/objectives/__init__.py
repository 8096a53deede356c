"""Objectives: what a model is trained to do."""

from heddle.objectives.next_token import NextTokenConfig
from heddle.objectives.objective import Loss, ObjectiveConfig, with_penalties
from heddle.objectives.sequence import SequenceConfig

__all__ = ["Loss", "NextTokenConfig", "ObjectiveConfig", "SequenceConfig", "with_penalties"]
