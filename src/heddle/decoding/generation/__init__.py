"""Generation: prompts to new ids, one token a step, with log-probabilities; contrastive search."""

from heddle.decoding.generation.decode import (
    Completion,
    Row,
    StepOutput,
    StepOutputs,
    StopCriterion,
    complete,
    follow,
    generate,
    max_new_tokens,
    rows_of,
    stream,
)
from heddle.decoding.generation.logprobs import Odds, token_logprobs

__all__ = [
    "Completion",
    "Odds",
    "Row",
    "StepOutput",
    "StepOutputs",
    "StopCriterion",
    "complete",
    "follow",
    "generate",
    "max_new_tokens",
    "rows_of",
    "stream",
    "token_logprobs",
]
