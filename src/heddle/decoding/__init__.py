"""Decoding: ids -> ids and ids -> odds. Generation with state, filters, sampling by keyed draws, scoring by windows."""

from heddle.decoding.generation import Completion, Reason, complete, generate, stream
from heddle.decoding.how import How
from heddle.decoding.reach import at_rest, readable
from heddle.decoding.scoring import Windows, nll_of, windows_for

__all__ = [
    "Completion",
    "How",
    "Reason",
    "Windows",
    "at_rest",
    "complete",
    "generate",
    "nll_of",
    "readable",
    "stream",
    "windows_for",
]
