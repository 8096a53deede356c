"""Explain attention backends: which one a layer uses in training and decoding, and why, without weights or a GPU."""

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from heddle.nn.attention.attention import Attention, MultiHeadAttention
from heddle.nn.attention.backends import AttentionCall, AttentionInputs, Backend, choose_backend
from heddle.nn.attention.latent import LatentAttention
from heddle.nn.attention.projections import AttentionPart
from heddle.nn.attention.scores import GeneralScore, Score
from heddle.nn.base import Context, Relation, Sight
from heddle.nn.layers import base_mask
from heddle.nn.positions import AttentionBias, Position, RelativePosition
from heddle.nn.state import State

Phase = Literal["training", "packed", "decoding"]  # rows of one text, rows of several, one token after a KV cache


@dataclasses.dataclass(frozen=True)
class Situation:
    """Where attention would run; on a GPU training is compiled, and decoding is replayed as CUDA graphs."""

    phase: Phase
    device: str
    dtype: torch.dtype
    length: int

    @property
    def queries(self) -> int:
        """Count the queries of a row."""
        return 1 if self.phase == "decoding" else self.length

    def empty(self, *shape: int) -> Tensor:
        """Return a tensor without memory."""
        return torch.empty(shape, dtype=self.dtype, device="meta")

    def context(self, sight: Sight, position: Position) -> Context:
        """Return the context that a tower prepares for its layers, but for rotations, which change no choice."""
        state = State.empty(1, self.length, "meta") if self.phase == "decoding" else None
        documents = torch.zeros(1, self.length, dtype=torch.long, device="meta") if self.phase == "packed" else None
        ctx, pairs = Context(documents=documents, state=state), (self.queries, self.length)
        ctx = dataclasses.replace(ctx, allowed=base_mask(ctx, self.queries, sight, torch.device("meta")))
        if isinstance(position, AttentionBias):
            ctx = dataclasses.replace(ctx, bias={heads: self.empty(1, heads, *pairs) for heads in position.heads})
        if isinstance(position, RelativePosition):
            table, index = self.empty(*position.keys.shape), self.empty(1, *pairs).long()
            ctx = dataclasses.replace(ctx, relation=Relation(table, table, index))
        return ctx


@torch.no_grad()
def explain_backend(part: AttentionPart, position: Position, sight: Sight, where: Situation) -> Backend:
    """Return the backend that the table gives a part there; its `reason` says why."""
    score: Score = part.score
    inputs, learning = _inputs(part, where.context(sight, position), where), where.phase != "decoding"
    if isinstance(score, GeneralScore):
        score, inputs = score.dot, dataclasses.replace(inputs, sliding_window=None, cache_lengths=None)
    compiling = learning and where.device == "cuda"
    call = AttentionCall(score, inputs, part.dropout if learning else 0.0, where.device, compiling)
    return choose_backend(call)


def _inputs(part: AttentionPart, ctx: Context, where: Situation) -> AttentionInputs:
    """Return the inputs that a part would make, without their numbers."""
    queries, keys = where.queries, where.length
    if isinstance(part, Attention):
        query = where.empty(1, part.heads, queries, part.head_width)
        key, value = (where.empty(1, part.kv_heads, keys, part.head_width) for _ in range(2))
        return part.inputs_from(query, key, value, ctx)
    if isinstance(part, LatentAttention):
        one, rotary = where.phase == "decoding", part.widths.rotary
        heads, width, value_width = (
            (1, part.latent_width, part.latent_width) if one else (part.heads, part.widths.key, part.widths.value)
        )
        query = where.empty(1, part.heads, queries, width + rotary)
        key, value = (where.empty(1, heads, keys, size) for size in (width + rotary, value_width))
        return part.inputs_from(query, key, value, ctx)
    assert isinstance(part, MultiHeadAttention)
    key = where.empty(1, part.kv_heads, keys, part.head_width)
    allowed = torch.ones(1, 1, 1, keys, dtype=torch.bool, device="meta")  # sources of unlike length are padded
    return AttentionInputs(where.empty(1, part.heads, queries, part.head_width), key, key, allowed)
