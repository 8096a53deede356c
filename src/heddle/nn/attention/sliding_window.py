"""Sliding window attention, block by block (Beltagy et al. 2020): its cost is linear in the length."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from heddle.nn.base import Sight

PerHead = Float[Tensor, "batch _ length _"]


@dataclass(frozen=True)
class SlidingWindow:
    """A query sees keys less than `size` positions back, and also ahead where the sight is all."""

    size: int
    sight: Sight
    documents: Int[Tensor, "batch length"] | None = None  # None: a row is one document


def sliding_window_attend(
    query: PerHead, key: PerHead, value: PerHead, window: SlidingWindow, scale: float, dropout: float = 0.0
) -> PerHead:
    """Return softmax(query · key * scale) · value within a sliding window, [batch, heads, length, head_width].

    The row is cut into blocks of the window's size. The queries of a block see only keys of their own block and of its
    neighbours, which are copied side by side.
    """
    batch, length, size = query.shape[0], query.shape[2], window.size
    if key.shape[1] < query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    after = 0 if window.sight == "past" else 1
    blocks = -(-length // size)
    padding = blocks * size - length
    query_blocks = _blocks(F.pad(query, (0, 0, 0, padding)), blocks)
    keys, values = (
        _blocks(_with_neighbours(F.pad(t, (0, 0, size, padding + after * size)), 2 + after, size), blocks)
        for t in (key, value)
    )
    allowed = _allowed(length, size, after, query.device)
    if window.documents is not None:
        allowed = allowed & _same_document(window.documents, blocks, size, after)
    mask = allowed.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    output = F.scaled_dot_product_attention(query_blocks, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale)
    heads, width = output.shape[1], output.shape[-1]
    return output.view(batch, blocks, heads, size, width).transpose(1, 2).flatten(2, 3)[:, :, :length]


def _blocks(x: Tensor, blocks: int) -> Tensor:
    """Turn [batch, heads, blocks * rows, width] into [batch * blocks, heads, rows, width]."""
    return x.unflatten(2, (blocks, -1)).transpose(1, 2).flatten(0, 1)  # type: ignore[no-any-return]


def _with_neighbours(x: Tensor, count: int, size: int) -> Tensor:
    """Copy each block with its neighbours: from blocks of `size` to overlapping runs of `count` blocks."""
    return x.unfold(2, count * size, size).transpose(-1, -2).flatten(2, 3)


def _allowed(length: int, size: int, after: int, device: torch.device) -> Bool[Tensor, "1 blocks query key"]:
    blocks = -(-length // size)
    begin = torch.arange(blocks, device=device)[:, None, None] * size
    queries = begin + torch.arange(size, device=device)[:, None]
    keys = begin + torch.arange(-size, (1 + after) * size, device=device)
    distance = queries - keys
    visible = (distance.abs() < size) & (keys >= 0) & (keys < length)
    visible = visible if after else visible & (distance >= 0)
    return (visible | (queries >= length))[None]  # padded queries see all: with no key their unused output were NaN


def _same_document(
    documents: Int[Tensor, "batch length"], blocks: int, size: int, after: int
) -> Bool[Tensor, "batch blocks query key"]:
    padding = blocks * size - documents.shape[1]
    queries = F.pad(documents, (0, padding), value=-1).unflatten(1, (blocks, size))
    keys = F.pad(documents, (size, padding + after * size), value=-1).unfold(1, (2 + after) * size, size)
    return queries[..., None] == keys[..., None, :]  # type: ignore[no-any-return]
