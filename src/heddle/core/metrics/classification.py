"""Classification: accuracy and F1, averaged over classes (macro) or over all decisions (micro)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def accuracy(found: Sequence[object], gold: Sequence[object]) -> float:
    """Return the share of predictions that are right."""
    return sum(a == b for a, b in zip(found, gold, strict=True)) / max(1, len(gold))


def macro_f1(found: Sequence[object], gold: Sequence[object]) -> float:
    """Return the mean F1 over the classes that occur in either; one without a right prediction counts as 0."""
    scores = []
    for name in {*found, *gold}:
        right = sum(a == b == name for a, b in zip(found, gold, strict=True))
        total = sum(a == name for a in found) + sum(b == name for b in gold)
        scores.append(2 * right / total)
    return sum(scores) / max(1, len(scores))


def multi_label_f1(found: NDArray[np.bool_], gold: NDArray[np.bool_]) -> tuple[float, float]:
    """Return micro and macro F1 of decisions, a row for each text and a column for each class.

    A class that neither occurs nor is predicted counts as 0 in the macro average, as in scikit-learn.
    """
    right, total = (found & gold).sum(0), found.sum(0) + gold.sum(0)
    micro = 2 * int(right.sum()) / max(1, int(total.sum()))
    return float(micro), float((2 * right / np.maximum(1, total)).mean()) if found.shape[1] else 0.0
