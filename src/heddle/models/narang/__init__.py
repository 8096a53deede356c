"""Narang et al. (2021): their baseline, its 52 variants as edits, and their count of operations."""

from heddle.models.narang.operation_count import paper_ops
from heddle.models.narang.variants import CORRECTED, DEPTHS, VARIANTS, narang
