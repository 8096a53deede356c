"""Tasks on text: generation, translation, chat, scoring, rescoring and spelling correction, each with its metrics."""

from heddle.tasks import correcting, generation, metrics, rescoring, scoring
