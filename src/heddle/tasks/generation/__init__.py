"""Generation from text: completion, chat, translation, constraints and stop strings."""

from heddle.tasks.generation.chat import Conversation, chat_template, conversation
from heddle.tasks.generation.constrain import ConstraintCompiler, Rules, make_constraints
from heddle.tasks.generation.translate import (
    CandidateRanking,
    MinimumBayesRisk,
    SearchOrder,
    Translation,
    Translator,
    grade,
    metric,
    translator,
)
from heddle.tasks.generation.write import Answer, Stop, Told, Writer, stop_strings, writer

__all__ = [
    "Answer",
    "CandidateRanking",
    "ConstraintCompiler",
    "Conversation",
    "MinimumBayesRisk",
    "Rules",
    "SearchOrder",
    "Stop",
    "Told",
    "Translation",
    "Translator",
    "Writer",
    "chat_template",
    "conversation",
    "grade",
    "make_constraints",
    "metric",
    "stop_strings",
    "translator",
    "writer",
]
