"""Spelling correction in context: a noisy channel of candidate words, a learned error model and a language model."""

from heddle.tasks.correcting.corrector import CorrectedText, Correction, Corrector, CorrectorConfig
from heddle.tasks.correcting.error_model import ErrorModel
from heddle.tasks.correcting.error_pairs import exclude_test_pairs, parse_error_pairs, read_error_pairs
from heddle.tasks.correcting.lexicon import Lexicon, count_lexicon, english_lexicon, read_lexicon
from heddle.tasks.correcting.suggestions import NoisyChannelWeights
