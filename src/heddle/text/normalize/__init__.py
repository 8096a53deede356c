"""Text normalization for speech and rescoring: case, punctuation, numbers as spoken."""

from heddle.text.normalize.normalizer import NormalizerConfig, normalize_text
