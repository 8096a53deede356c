"""Correcting: spelling in context. Near words, errors learnt from pairs, and a language model that chooses."""

from heddle.tasks.correcting.corrector import Change, Corrected, Corrector, CorrectorConfig
from heddle.tasks.correcting.error_model import ErrorModel
from heddle.tasks.correcting.lexicon import Words, count_words, english_words, read_words
from heddle.tasks.correcting.options import Weights
from heddle.tasks.correcting.pairs import parse_pairs, read_pairs, without

__all__ = [
    "Change",
    "Corrected",
    "Corrector",
    "CorrectorConfig",
    "ErrorModel",
    "Weights",
    "Words",
    "count_words",
    "english_words",
    "parse_pairs",
    "read_pairs",
    "read_words",
    "without",
]
