"""Horizon: how far attention may look while it learns, set from outside (window warm-up, modded-nanogpt 2024)."""

import dataclasses

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.nn.attention.scores import AttentionInputs
from heddle.nn.layers import causal_mask

WarmupWindow = Int[Tensor, ""]  # places, itself included; a tensor, so that a compiled step serves every size


def apply_warmup_window(inputs: AttentionInputs, warmup_window: WarmupWindow) -> AttentionInputs:
    """Return a meeting, of one row with itself, in which nobody sees as far as the horizon or beyond."""
    length, device = inputs.query.shape[2], inputs.query.device
    at = torch.arange(length, device=device)
    allowed = ((at[:, None] - at).abs() < warmup_window)[None, None]
    if inputs.allowed is not None:
        allowed = allowed & inputs.allowed
    elif inputs.causal:
        allowed = allowed & causal_mask(length, device)
    flex_mask = None if inputs.flex_mask is None else dataclasses.replace(inputs.flex_mask, window=warmup_window)
    return dataclasses.replace(inputs, allowed=allowed, flex_mask=flex_mask)
