"""Scoring: log-probability and surprisal of texts by token, word and sentence; perplexity of held-out text."""

from heddle.tasks.scoring.perplexity import Evaluation, evaluate, evaluate_chats
from heddle.tasks.scoring.score import Passage, Reading, Readings, Scored, Scorer, reading_of, scorer
from heddle.tasks.scoring.token_costs import costs, costs_given, costs_masked, ending, mask_of

__all__ = [
    "Evaluation",
    "Passage",
    "Reading",
    "Readings",
    "Scored",
    "Scorer",
    "costs",
    "costs_given",
    "costs_masked",
    "ending",
    "evaluate",
    "evaluate_chats",
    "mask_of",
    "reading_of",
    "scorer",
]
