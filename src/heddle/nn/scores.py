"""Scores: softmax(query · key / sqrt(head_width)) · value, by the fused kernel or written out (Vaswani et al. 2017)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core.shapes import Allowed
from heddle.nn.part import wide

LONGEST_WRITTEN = 512  # keys; beyond, whole score matrices cost more than they save


def mix(query: Tensor, key: Tensor, value: Tensor, allowed: Allowed | None, causal: bool, dropout: float) -> Tensor:
    """Mix values by attention; all are [batch, heads, length, head_width], keys and values with fewer heads or as many.

    With no mask given, `causal` decides. On a CPU in half precision, short rows were measured faster written out than
    by the fused kernel (decision 0009).
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and allowed is not None:  # the fast kernels take a mask or grouped heads, not both
        key, value, groups = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1), 1
    written = query.is_cpu and query.dtype is torch.bfloat16 and key.shape[-2] <= LONGEST_WRITTEN
    if written and query.shape[-2] > 1:
        return written_out(query, key, value, allowed, causal, dropout)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=causal and allowed is None,
        enable_gqa=groups > 1,
    )


def written_out(
    query: Tensor, key: Tensor, value: Tensor, allowed: Allowed | None, causal: bool, dropout: float
) -> Tensor:
    """Mix values with the weights in full view."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query * (1 / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
    if allowed is None and causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    weights = torch.softmax(wide(scores), dim=-1).to(query.dtype)
    return F.dropout(weights, dropout, training=dropout > 0) @ value
