"""Normalisation of text for speech and rescoring: case, punctuation, numbers as they are spoken."""

from heddle.text.normalize.normalizer import NormalizerConfig, normalize_text
