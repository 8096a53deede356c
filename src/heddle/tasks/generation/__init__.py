"""Generation from text: completion, chat, translation, constraints and stop strings."""

from heddle.tasks.generation.chat import Conversation, conversation, template_of
from heddle.tasks.generation.constrain import ConstraintCompiler, Rules, rules_of
from heddle.tasks.generation.translate import (
    AsFound,
    Chooser,
    LeastRisk,
    Translation,
    Translator,
    grade,
    metric,
    translator,
)
from heddle.tasks.generation.write import Answer, Stop, Told, Writer, stops_of, writer

__all__ = [
    "Answer",
    "AsFound",
    "Chooser",
    "ConstraintCompiler",
    "Conversation",
    "LeastRisk",
    "Rules",
    "Stop",
    "Told",
    "Translation",
    "Translator",
    "Writer",
    "conversation",
    "grade",
    "metric",
    "rules_of",
    "stops_of",
    "template_of",
    "translator",
    "writer",
]
