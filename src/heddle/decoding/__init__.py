"""Decoding: ids -> ids and ids -> odds. Generation with state, filters, keyed draws, beams, scoring by windows."""

from heddle.decoding.beam import Hypothesis, search
from heddle.decoding.carrying import nll_carried
from heddle.decoding.generation import Completion, complete, generate, stream
from heddle.decoding.how import How, Wishes, how_of
from heddle.decoding.opening import Reason
from heddle.decoding.reach import at_rest, padded, readable, readable_source
from heddle.decoding.scoring import Windows, nll_given, nll_of, windows_for

__all__ = [
    "Completion",
    "How",
    "Hypothesis",
    "Reason",
    "Windows",
    "Wishes",
    "at_rest",
    "complete",
    "generate",
    "how_of",
    "nll_carried",
    "nll_given",
    "nll_of",
    "padded",
    "readable",
    "readable_source",
    "search",
    "stream",
    "windows_for",
]
