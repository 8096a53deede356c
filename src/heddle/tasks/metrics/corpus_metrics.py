"""Corpus metrics from additive counts: word error rate (Levenshtein 1966; Myers 1999) and BLEU (Papineni et al. 2002).

A corpus score is a function of summed counts. So the score of any choice among candidates follows from the counts of
each candidate, which are computed once.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heddle.core.metrics import edit_distance
from heddle.tasks.metrics.similarity import sacrebleu_for
from heddle.text.normalize import NormalizerConfig, normalize_text

MetricCounts = NDArray[np.float64]  # the last dimension holds the counts
ORDERS = 4


class CorpusMetric(ABC):
    """A metric of one chosen text per reference, computed from summed counts."""

    name: str
    higher: bool  # whether higher is better

    @abstractmethod
    def counts(self, texts: Sequence[str], reference: str) -> MetricCounts:
        """Return the counts of each text, one row each."""

    @abstractmethod
    def value(self, counts: MetricCounts) -> MetricCounts:
        """Return the score in per cent of summed counts; the leading dimensions are kept."""

    @abstractmethod
    def signature(self) -> str:
        """Return exactly how it is counted."""

    def cost(self, counts: MetricCounts) -> MetricCounts:
        """Return the score with the sign that makes lower better."""
        return -self.value(counts) if self.higher else self.value(counts)


class WordErrorRate(CorpusMetric):
    """Word error rate (WER) in per cent; optionally both sides are normalized first."""

    name, higher = "wer", False

    def __init__(self, form: NormalizerConfig | None = None) -> None:
        self.form = form

    def counts(self, texts: Sequence[str], reference: str) -> MetricCounts:
        right = self._words(reference)
        known = {text: edit_distance(self._words(text), right) for text in dict.fromkeys(texts)}
        return np.array([[known[text], len(right)] for text in texts], dtype=np.float64)

    def _words(self, text: str) -> list[str]:
        return (text if self.form is None else normalize_text(text, self.form)).split()

    def value(self, counts: MetricCounts) -> MetricCounts:
        return 100 * counts[..., 0] / np.maximum(1, counts[..., 1])

    def signature(self) -> str:
        return "words as they stand" if self.form is None else "words in normal form"


class Bleu(CorpusMetric):
    """BLEU as sacrebleu computes it, from n-gram matches (Papineni et al. 2002; Post 2018)."""

    name, higher = "bleu", True

    def __init__(self) -> None:
        metric = sacrebleu_for("scoring by BLEU")
        self._bleu = metric(effective_order=True)  # for single texts; the counts are the same
        self._corpus = metric()
        self._corpus.corpus_score(["a"], [["a"]])  # so that its signature says that there is one reference

    def counts(self, texts: Sequence[str], reference: str) -> MetricCounts:
        known = {text: self._bleu.sentence_score(text, [reference]) for text in dict.fromkeys(texts)}
        rows = [[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in (known[text] for text in texts)]
        return np.array(rows, dtype=np.float64)

    def value(self, counts: MetricCounts) -> MetricCounts:
        flat = counts.reshape(-1, counts.shape[-1])
        return np.array([self._one(row) for row in flat.astype(int).tolist()]).reshape(counts.shape[:-1])

    def _one(self, row: list[int]) -> float:
        right, total = row[:ORDERS], row[ORDERS : 2 * ORDERS]
        score = self._corpus.compute_bleu(right, total, row[-2], row[-1], smooth_method="exp")
        return float(score.score)

    def signature(self) -> str:
        return str(self._corpus.get_signature())


def metric_named(name: str, form: NormalizerConfig | None = None) -> CorpusMetric:
    """Return the metric of a name."""
    return Bleu() if name == "bleu" else WordErrorRate(form)
