"""Metrics: word error rate, BLEU, chrF, and utilities for minimum Bayes risk."""

from heddle.tasks.metrics.measures import Bleu, Counts, Measure, WordErrors, edits, measure_of
from heddle.tasks.metrics.similarity import Likeness, chrf, likeness_of, sacrebleu_for

__all__ = [
    "Bleu",
    "Counts",
    "Likeness",
    "Measure",
    "WordErrors",
    "chrf",
    "edits",
    "likeness_of",
    "measure_of",
    "sacrebleu_for",
]
