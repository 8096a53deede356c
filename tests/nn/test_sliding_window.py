"""Sliding window attention block by block equals attention with a mask."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from heddle.nn.attention.sliding_window import SlidingWindow, sliding_window_attend
from heddle.nn.base import Sight


@pytest.mark.parametrize(("length", "size"), list(itertools.product((1, 5, 12, 31), (1, 3, 4, 8))))
@pytest.mark.parametrize("sight", ["past", "all"])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_equal_the_masked_form(length: int, size: int, sight: Sight, packed: bool) -> None:
    draw = torch.Generator().manual_seed(length * size)
    q = torch.randn(2, 4, length, 6, generator=draw, dtype=torch.float64)
    k, v = (torch.randn(2, 2, length, 6, generator=draw, dtype=torch.float64) for _ in range(2))
    documents = torch.stack([torch.arange(length) // 4, torch.arange(length) // 7]) if packed else None
    distance = torch.arange(length)[:, None] - torch.arange(length)
    allowed = (distance.abs() < size) & ((distance >= 0) | (sight == "all"))
    allowed = allowed[None, None]
    if documents is not None:
        allowed = allowed & (documents[:, :, None] == documents[:, None, :])[:, None]
    repeated = [t.repeat_interleave(2, dim=1) for t in (k, v)]
    want = F.scaled_dot_product_attention(q, *repeated, attn_mask=allowed)
    found = sliding_window_attend(q, k, v, SlidingWindow(size, sight, documents), scale=6**-0.5)
    assert torch.allclose(found, want, atol=1e-12)
    assert found.isfinite().all()
