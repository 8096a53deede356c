"""Objectives: what a model is trained to do."""

from heddle.objectives.next_token import NextTokenConfig
from heddle.objectives.objective import Loss, ObjectiveConfig

__all__ = ["Loss", "NextTokenConfig", "ObjectiveConfig"]
