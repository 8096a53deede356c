"""Measured text: how many bytes of text the targets of some rows stand for, for bits per byte."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle.data.rows.loader import RowPlan
from heddle.data.shards import Shards
from heddle.text.tokenizers import Tokenizer, token_lengths

BLOCK = 1 << 20  # tokens read at a time


@dataclass(frozen=True)
class MeasuredText:
    """The text of the targets of rows: bytes per token, and how many of these unknown tokens stand for."""

    bytes_per_token: float
    lost_per_token: float = 0.0


def measured_text(plan: RowPlan, rows: range, shards: Shards, tokenizer: Callable[[], Tokenizer]) -> MeasuredText:
    """Return the text of some rows of a plan.

    Shards know the bytes of all their text. Where some of it is not in the rows, the bytes that each token adds to a
    text tell how much; for a tokenizer of bytes exactly, for others in proportion.
    """
    if len(rows) == plan.rows_per_epoch and not any(plan.skipped.values()):
        return MeasuredText(shards.bytes / shards.counted, shards.lost / shards.counted)
    known = tokenizer()
    lengths, unknown = token_lengths(known), known.unknown
    whole, part = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    for start in range(0, shards.tokens, BLOCK):
        size = min(BLOCK, shards.tokens - start)
        tokens, weights = np.empty(size + 1, shards.dtype), np.empty(size, np.float32)
        shards.fill(tokens, start)
        shards.fill_weights(weights, start)
        whole += _count(tokens, weights, len(lengths))
    for number in rows:
        row = plan.row(number)
        part += _count(row.tokens, row.weights, len(lengths))
    hidden = 0 if unknown is None else int(whole[unknown])
    sizes = lengths.astype(np.float64)
    if unknown is not None and hidden:
        sizes[unknown] = shards.lost / hidden
    share = float(part @ sizes) / max(1.0, float(whole @ sizes))
    lost = 0.0 if unknown is None or not hidden else shards.lost * int(part[unknown]) / hidden
    targets = max(1, int(part.sum()))
    return MeasuredText(shards.bytes * share / targets, lost / targets)


def _count(tokens: NDArray[np.generic], weights: NDArray[np.float32], vocab: int) -> NDArray[np.int64]:
    """Count each id among the targets that have a loss."""
    return np.bincount(tokens[1:][weights > 0].astype(np.int64), minlength=vocab)
