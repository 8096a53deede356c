"""Scoring: how probable each token of a text is, by sliding window, with carried state, masked, or forked."""

from heddle.decoding.scoring.carried import nll_with_carried_state
from heddle.decoding.scoring.forking import SharedPrefix, TokenQueries, score_continuations, score_tokens
from heddle.decoding.scoring.masked import MaskedText, check_encoder_input, masked_output, nll_masked
from heddle.decoding.scoring.scoring import (
    Continuation,
    Document,
    Losses,
    Measure,
    Windows,
    any_token_loss,
    length_batches,
    nll_given_source,
    nll_sliding_window,
    scoring_windows,
)

__all__ = [
    "Continuation",
    "Document",
    "Losses",
    "MaskedText",
    "Measure",
    "SharedPrefix",
    "TokenQueries",
    "Windows",
    "any_token_loss",
    "check_encoder_input",
    "length_batches",
    "masked_output",
    "nll_given_source",
    "nll_masked",
    "nll_sliding_window",
    "nll_with_carried_state",
    "score_continuations",
    "score_tokens",
    "scoring_windows",
]
