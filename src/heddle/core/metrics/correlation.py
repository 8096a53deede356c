"""Correlation: Pearson's, and Spearman's of ranks, in which equal values share the mean of their ranks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pearson(found: Sequence[float], gold: Sequence[float]) -> float:
    """Return the linear correlation; 0 where one side does not vary."""
    a, b = (
        np.asarray(values, np.float64) - np.mean(values) if len(values) else np.zeros(0) for values in (found, gold)
    )
    spread = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / spread if spread > 0 else 0.0


def spearman(found: Sequence[float], gold: Sequence[float]) -> float:
    """Return the correlation of ranks; 0 where one side does not vary."""
    return pearson(_ranks(found).tolist(), _ranks(gold).tolist())


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(((2 * last - counts + 1) / 2)[inverse], np.float64)
