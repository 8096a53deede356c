"""Scoring: how probable each token of a text is, by sliding window, with carried state, masked, or forked."""

from heddle.decoding.scoring.carried import nll_with_carried_state
from heddle.decoding.scoring.forking import SharedPrefix, TokenQueries, score_continuations, score_tokens
from heddle.decoding.scoring.masked import MaskedText, check_encoder_input, nll_masked
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
