"""Scoring: log-probability and surprisal of texts by token, word and sentence; perplexity of held-out text."""

from heddle.tasks.scoring.counts import Counts, Evaluation, documents_of
from heddle.tasks.scoring.long_texts import PositionConfig, PositionLosses, evaluate_streaming, loss_by_position
from heddle.tasks.scoring.nll import (
    conditional_token_nll,
    mask_id,
    masked_token_nll,
    token_nll,
    with_document_start,
    with_special_tokens,
)
from heddle.tasks.scoring.other_models import evaluate_encoder, evaluate_pairs
from heddle.tasks.scoring.perplexity import evaluate, evaluate_chats
from heddle.tasks.scoring.text_scoring import (
    ScoringConfig,
    ScoringInput,
    ScoringOptions,
    TextScore,
    TextScorer,
    scoring_config,
    text_scorer,
)
