"""Tasks: what a model is for, each with a way to run it and a way to grade it."""

from heddle.tasks.perplexity import Evaluation, evaluate
from heddle.tasks.translate import Grade, Translator, grade, metric, translator

__all__ = ["Evaluation", "Grade", "Translator", "evaluate", "grade", "metric", "translator"]
