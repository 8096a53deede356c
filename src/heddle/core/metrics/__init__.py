"""Metrics: numbers that grade predictions against labels: accuracy, F1, entities, correlation, answers."""

from heddle.core.metrics.answers import answer_f1, exact_match, normalize_answer
from heddle.core.metrics.classification import accuracy, macro_f1, multi_label_f1
from heddle.core.metrics.correlation import pearson, spearman
from heddle.core.metrics.edits import edit_distance
from heddle.core.metrics.entities import EntityScore, entities, entity_f1
