"""Rescoring of n-best lists with a language model, and minimum error rate training of its weights."""

from heddle.tasks.rescoring.nbest import MAX_CHARACTERS, NBest, NBestCandidate, parse_nbest
from heddle.tasks.rescoring.rescore import (
    WORDS,
    Features,
    FeatureWeights,
    MetricTally,
    Rescorer,
    RescoringConfig,
    RescoringReport,
    ScoringModel,
    feature_weights,
    measure_weights,
    metric_counts,
    tune_weights,
)
