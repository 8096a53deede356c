"""Decoding: ids -> ids and ids -> odds. Generation with state, filters, keyed draws, beams, scoring by windows."""

from heddle.decoding import constraints, generation, runtime, sampling, scoring, search, speculative
