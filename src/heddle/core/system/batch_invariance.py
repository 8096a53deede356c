"""Batch invariance: operations whose result for a row has the same bits whatever other rows are computed beside it.

Matrix products of another number of rows may use another kernel, and so another order of summation. In this mode the
few operations whose number of rows depends on other requests run on a fixed number (He et al. 2025, "Defeating
nondeterminism in LLM inference"). Serving turns it on for its own thread, and checks at start that it holds.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

BLOCK = 16  # rows of one matrix product of an expert


@dataclass(frozen=True)
class BatchInvariance:
    """What is done beyond a fixed number of rows."""

    attention_by_row: bool = False  # attention of each row by itself: needed with several threads


# The mode of this thread; None: results may depend on the other rows, in their last bits.
BATCH_INVARIANCE: ContextVar[BatchInvariance | None] = ContextVar("batch_invariance", default=None)


@contextlib.contextmanager
def batch_invariant(mode: BatchInvariance | None) -> Iterator[None]:
    """Compute batch-invariantly in this thread; None: not."""
    token = BATCH_INVARIANCE.set(mode)
    try:
        yield
    finally:
        BATCH_INVARIANCE.reset(token)
