"""Scoring: how probable each token of a text is, by sliding window, with carried state, masked, or forked."""

from heddle.decoding.scoring.carried import nll_carried
from heddle.decoding.scoring.forking import Fork, Glance, forked, glanced
from heddle.decoding.scoring.masked import Hiding, masked_output, nll_masked, readable_whole
from heddle.decoding.scoring.scoring import (
    Continuation,
    Document,
    Losses,
    Measure,
    Windows,
    any_of,
    by_length,
    nll_given,
    nll_of,
    windows_for,
)

__all__ = [
    "Continuation",
    "Document",
    "Fork",
    "Glance",
    "Hiding",
    "Losses",
    "Measure",
    "Windows",
    "any_of",
    "by_length",
    "forked",
    "glanced",
    "masked_output",
    "nll_carried",
    "nll_given",
    "nll_masked",
    "nll_of",
    "readable_whole",
    "windows_for",
]
