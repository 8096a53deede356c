"""Rescoring of n-best lists with a language model, and minimum error rate training of its weights."""

from heddle.tasks.rescoring.nbest import LONGEST, Candidate, NBest, parse_nbest
from heddle.tasks.rescoring.rescore import (
    WORDS,
    Features,
    Mix,
    Report,
    Rescorer,
    RescoringConfig,
    ScoringModel,
    Tally,
    feature_weights,
    graded,
    metric_counts,
    tune,
)

__all__ = [
    "LONGEST",
    "WORDS",
    "Candidate",
    "Features",
    "Mix",
    "NBest",
    "Report",
    "Rescorer",
    "RescoringConfig",
    "ScoringModel",
    "Tally",
    "feature_weights",
    "graded",
    "metric_counts",
    "parse_nbest",
    "tune",
]
