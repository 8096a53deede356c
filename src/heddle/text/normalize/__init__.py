"""Normalisation of text for speech and rescoring: case, punctuation, numbers as they are spoken."""

from heddle.text.normalize.normalizer import NormalConfig, normal

__all__ = ["NormalConfig", "normal"]
