"""Tasks: what a model is for, each with a way to run it and a way to grade it."""

from heddle.tasks import correcting, generation, metrics, rescoring, scoring

__all__ = ["correcting", "generation", "metrics", "rescoring", "scoring"]
