"""Sampling: filters (temperature, top-k, top-p, min-p, typical), penalties, and seeded random draws."""

from heddle.decoding.sampling.draws import (
    NO_TOKEN,
    NextTokens,
    RowPosition,
    check_logits,
    check_token_ids,
    greedy_tokens,
    hash_ids,
    inverse_cdf,
    uniform,
)
from heddle.decoding.sampling.filters import NEG_INF, Logits, apply_temperature, min_p, top_k, top_p, typical
from heddle.decoding.sampling.penalties import History, PenaltyConfig, apply_penalties
