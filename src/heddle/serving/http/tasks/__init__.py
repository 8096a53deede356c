"""The library's tasks as routes: labels, fillings, n-best lists and embeddings, translations, summaries, answers."""

from heddle.serving.http.tasks.generation import answer, summarize, translate
from heddle.serving.http.tasks.labelling import classify, embed, fill, rescore, tag
from heddle.serving.http.tasks.results import task_names, trained_tasks
