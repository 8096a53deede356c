"""Search: beam search with coverage, and minimum Bayes risk (MBR)."""

from heddle.decoding.search.beam import BeamSearch
from heddle.decoding.search.mbr import expected_utilities, token_f1
from heddle.decoding.search.tree import BeamTreeNode, search_tree
