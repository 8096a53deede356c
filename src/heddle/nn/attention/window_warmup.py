"""Horizon: how far attention may look while it learns, set from outside (window warm-up, modded-nanogpt 2024)."""

import dataclasses

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.nn.attention.scores import Meeting
from heddle.nn.layers import causal_mask

Horizon = Int[Tensor, ""]  # places, itself included; a tensor, so that a compiled step serves every size


def narrowed(meeting: Meeting, horizon: Horizon) -> Meeting:
    """Return a meeting, of one row with itself, in which nobody sees as far as the horizon or beyond."""
    length, device = meeting.query.shape[2], meeting.query.device
    at = torch.arange(length, device=device)
    allowed = ((at[:, None] - at).abs() < horizon)[None, None]
    if meeting.allowed is not None:
        allowed = allowed & meeting.allowed
    elif meeting.causal:
        allowed = allowed & causal_mask(length, device)
    visible = None if meeting.visible is None else dataclasses.replace(meeting.visible, window=horizon)
    return dataclasses.replace(meeting, allowed=allowed, visible=visible)
