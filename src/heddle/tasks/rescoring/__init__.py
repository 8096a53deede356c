"""Rescoring of n-best lists with a language model, and minimum error rate training of its weights."""

from heddle.tasks.rescoring.nbest import LONGEST, Candidate, NBest, nbest_of
from heddle.tasks.rescoring.rescore import (
    WORDS,
    Features,
    Judge,
    Mix,
    ReadingConfig,
    Report,
    Rescorer,
    Tally,
    counts_of,
    graded,
    mix_for,
    tune,
)

__all__ = [
    "LONGEST",
    "WORDS",
    "Candidate",
    "Features",
    "Judge",
    "Mix",
    "NBest",
    "ReadingConfig",
    "Report",
    "Rescorer",
    "Tally",
    "counts_of",
    "graded",
    "mix_for",
    "nbest_of",
    "tune",
]
