"""Attention maps: the weights of every head, recomputed from a layer's own projections, scores and masks.

The filters of lightweight and dynamic convolutions are softmaxes over neighbours, and are shown as maps too.
"""

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.explain.inputs import Observer, PartCall, Reading, Section, parts_of, watch_parts
from heddle.nn.attention import AttentionInputs, AttentionPart, CrossAttention, Synthesizer
from heddle.nn.base import upcast
from heddle.nn.convolution import Convolution
from heddle.nn.recurrent import AttentionRNN, SegmentRecurrence

CHUNK = 1 << 22  # attention weights that are computed at once; scores and softmax need a few times as much
ATTENDING = AttentionPart | Synthesizer | AttentionRNN | SegmentRecurrence | Convolution
EPS = 1e-5  # what a row may lack to one by rounding; more is a sink's
HALF_EPS = 5e-2  # in half precision


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one layer, [heads, queries, keys]; grouped-query attention has a row per query head."""

    name: str
    kind: str  # self, cross or convolution
    queries: str  # the sequence whose tokens attend
    keys: str  # the sequence whose tokens are attended to
    weights: Tensor
    sink: Tensor | None  # what each row lacks to one: a learned sink, or taps outside of the row; None: nothing

    def about(self) -> dict[str, Any]:
        """Return all but the weights as plain data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "queries": self.queries,
            "keys": self.keys,
            "shape": list(self.weights.shape),
            "sink": None if self.sink is None else self.sink.tolist(),
        }

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return self.about() | {"weights": self.weights.tolist()}


@dataclass(frozen=True)
class Attention(Section):
    """The attention maps of all layers, in the order of the forward pass."""

    maps: tuple[AttentionMap, ...]

    def plain(self) -> list[dict[str, Any]]:
        return [each.plain() for each in self.maps]


class AttentionObserver(Observer):
    """Recomputes the attention weights of every layer after it has run."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.maps = reading, list[AttentionMap]()
        if not any(isinstance(part, ATTENDING) for _, part in parts_of(reading)):
            raise UsageError("attention: want a model with attention or filters, got one without")

    def attach(self, hooks: contextlib.ExitStack) -> None:
        watch_parts(self.reading, hooks, self.see)

    def see(self, call: PartCall) -> None:
        """Keep the weights of a layer."""
        if isinstance(call.part, ATTENDING):
            self.maps.append(attention_map(self.reading, call))

    def result(self) -> Attention:
        return Attention(tuple(self.maps))


def attention_map(reading: Reading, call: PartCall) -> AttentionMap:
    """Return the attention weights of a layer, with what they are of."""
    weights = attention_weights(call)
    exact, weights = weights.dtype not in (torch.bfloat16, torch.float16), upcast(weights).cpu()
    cross = isinstance(call.part, CrossAttention | AttentionRNN)
    rest = 1 - weights.sum(-1)
    keys = reading.sequences[0].name if cross else call.sequence.name
    sink = rest if bool((rest > (EPS if exact else HALF_EPS)).any()) else None
    kind = "cross" if cross else "convolution" if isinstance(call.part, Convolution) else "self"
    return AttentionMap(call.name, kind, call.sequence.name, keys, weights, sink)


def attention_weights(call: PartCall) -> Tensor:
    """Return the attention weights of a layer, [heads, queries, keys]."""
    part = call.part
    if isinstance(part, AttentionRNN | SegmentRecurrence):
        return part.attention_weights(call.x, call.ctx, call.slot)[0]
    if isinstance(part, Synthesizer):
        return part.attention_weights(call.x, call.ctx)[0].expand(part.heads, -1, -1)
    if isinstance(part, Convolution):
        return filter_map(part, call)
    if not isinstance(part, AttentionPart):
        raise UsageError(f"{call.name}: want attention, got {type(part).__name__}")
    inputs = part.attention_inputs(call.x, call.ctx).with_mask()
    heads, queries, keys = inputs.query.shape[1], inputs.query.shape[2], inputs.key.shape[2]
    found = inputs.query.new_empty(heads, queries, keys)
    size = max(1, CHUNK // max(1, heads * keys))
    for first in range(0, queries, size):  # so that scores and softmax never exist for all rows at once
        rows = slice(first, first + size)
        found[:, rows] = part.score.attention_weights(query_rows(inputs, rows))[0]
    return found


def filter_map(part: Convolution, call: PartCall) -> Tensor:
    """Return the weights of a filter's taps as those of the positions that they see."""
    taps = part.tap_weights(call.x, call.ctx)[0]
    length, before = taps.shape[1], part.receptive.before
    found = taps.new_zeros(taps.shape[0], length, length + taps.shape[2] - 1)
    places = torch.arange(length, device=taps.device)[:, None] + torch.arange(taps.shape[2], device=taps.device)
    return found.scatter(2, places.expand_as(taps), taps)[:, :, before : before + length]


def query_rows(inputs: AttentionInputs, rows: slice) -> AttentionInputs:
    """Return the inputs of some queries, with the mask as a matrix."""
    queries, keys = inputs.query.shape[2], inputs.key.shape[2]
    relation, allowed, bias = inputs.relation, inputs.allowed, inputs.bias
    if relation is not None:
        relation = dataclasses.replace(relation, index=relation.index[:, rows])
    if allowed is not None:
        allowed = allowed[:, :, rows] if allowed.shape[2] > 1 else allowed
    elif inputs.causal:
        places = torch.arange(keys, device=inputs.query.device)
        allowed = (places <= places[:queries][rows, None])[None, None]
    if bias is not None:
        bias = bias[:, :, rows] if bias.shape[2] > 1 else bias
    return dataclasses.replace(
        inputs, query=inputs.query[:, :, rows], relation=relation, allowed=allowed, bias=bias, causal=False
    )
