"""Scoring: log-likelihoods by sliding window, with carried state, by masking, or of continuations of one prefix."""

from heddle.decoding.scoring.long_texts import nll_long_texts
from heddle.decoding.scoring.masked import MaskedText, check_encoder_input, nll_masked
from heddle.decoding.scoring.scoring import (
    Continuation,
    Document,
    Losses,
    ScoringWindows,
    TokenLoss,
    any_token_loss,
    hidden_sliding_window,
    length_batches,
    nll_given_source,
    nll_sliding_window,
    nll_with_carried_state,
    scoring_windows,
)
from heddle.decoding.scoring.shared_prefix import SharedPrefix, TokenQueries, score_continuations, score_tokens
