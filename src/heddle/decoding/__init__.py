"""Decoding: prompts to new ids by a decoding strategy, and texts to log-likelihoods."""

from heddle.decoding import constraints, ctc, generation, runtime, sampling, scoring, search, speculative
from heddle.decoding.options import GenerationOptions, generation_config
