"""Correcting: spelling in context. Near words, errors learnt from pairs, and a language model that chooses."""

from heddle.tasks.correcting.corrector import CorrectedText, Correction, Corrector, CorrectorConfig
from heddle.tasks.correcting.error_model import ErrorModel
from heddle.tasks.correcting.error_pairs import exclude_test_pairs, parse_error_pairs, read_error_pairs
from heddle.tasks.correcting.lexicon import Lexicon, count_lexicon, english_lexicon, read_lexicon
from heddle.tasks.correcting.suggestions import NoisyChannelWeights

__all__ = [
    "CorrectedText",
    "Correction",
    "Corrector",
    "CorrectorConfig",
    "ErrorModel",
    "Lexicon",
    "NoisyChannelWeights",
    "count_lexicon",
    "english_lexicon",
    "exclude_test_pairs",
    "parse_error_pairs",
    "read_error_pairs",
    "read_lexicon",
]
