"""Narang et al. (2021): their base, its 52 variants as edits, and operations as they count them."""

from heddle.models.narang.operation_count import paper_ops
from heddle.models.narang.variants import SANE, SHAPES, VARIANTS, narang
