"""Metrics: word error rate, BLEU, chrF, ROUGE, CIDEr-D, and utilities for minimum Bayes risk."""

from heddle.core.metrics import edit_distance
from heddle.tasks.metrics.consensus import caption_words, consensus_scores
from heddle.tasks.metrics.corpus_metrics import (
    Bleu,
    CorpusMetric,
    MetricCounts,
    WordErrorRate,
    metric_named,
)
from heddle.tasks.metrics.rouge import rouge, rouge_each, rouge_scorer, rouge_signature
from heddle.tasks.metrics.similarity import Similarity, chrf, sacrebleu_for, similarity_named
