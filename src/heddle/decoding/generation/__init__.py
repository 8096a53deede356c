"""Generation: prompts to new ids, one token a step, with log-probabilities; contrastive search."""

from heddle.decoding.generation.decode import (
    Completion,
    Halt,
    Row,
    Step,
    Steps,
    complete,
    follow,
    generate,
    room_for,
    rows_of,
    stream,
)
from heddle.decoding.generation.logprobs import Odds, odds_of

__all__ = [
    "Completion",
    "Halt",
    "Odds",
    "Row",
    "Step",
    "Steps",
    "complete",
    "follow",
    "generate",
    "odds_of",
    "room_for",
    "rows_of",
    "stream",
]
