"""Search: beam search with coverage, and minimum Bayes risk."""

from heddle.decoding.search.beam import Hypothesis, search
from heddle.decoding.search.mbr import expected_utilities, overlap
