"""Tasks: what a model is for, each with a way to run it and a way to grade it. Perplexity is the first."""

from heddle.tasks.perplexity import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
