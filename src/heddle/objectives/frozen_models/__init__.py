"""Objectives that read a frozen model beside the trained one: a teacher, or a reference model."""

from heddle.objectives.frozen_models.distillation import DistillationBatch, DistillationConfig
from heddle.objectives.frozen_models.preference import PreferenceConfig
