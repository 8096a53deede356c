"""Attention of a long text: a thumbnail of every head, and the exact weights of one, a layer in memory at a time."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import UsageError
from heddle.explain.inputs import ExplainOptions, PartCall, Reading, read, watch_parts
from heddle.explain.observers.attention import ATTENDING, AttentionMap, AttentionObserver, attention_map
from heddle.models.networks import Model
from heddle.text.tokenizers import Tokenizer

THUMBNAIL = 64  # rows and columns of a thumbnail, at most
LEVELS = 255


@dataclass(frozen=True)
class AttentionThumbnails:
    """The heads of a layer: the square root of the largest weight of each cell in 256 levels, [heads, rows, columns].

    The first column is the first key alone, where heads often park attention; the others share all further keys.
    """

    name: str
    kind: str  # self, cross or convolution
    queries: str
    keys: str
    shape: tuple[int, ...]  # of the weights: heads, queries, keys
    codes: Tensor

    def plain(self) -> dict[str, Any]:
        """Return all but the codes as plain data."""
        about = {"name": self.name, "kind": self.kind, "queries": self.queries, "keys": self.keys}
        return about | {"shape": list(self.shape), "thumbnail": list(self.codes.shape)}


def attention_thumbnails(
    model: Model, tokenizer: Tokenizer | None, text: str | Sequence[int], options: ExplainOptions | None = None
) -> list[AttentionThumbnails]:
    """Return thumbnails of all heads of all layers."""
    reading = read(model, tokenizer, text, ExplainOptions() if options is None else options)
    found: list[AttentionThumbnails] = []

    def keep(call: PartCall, _: int) -> None:
        own = attention_map(reading, call)
        shape = tuple(own.weights.shape)
        found.append(AttentionThumbnails(own.name, own.kind, own.queries, own.keys, shape, _codes(own.weights)))

    _watch(reading, keep)
    return found


def attention_of_head(
    model: Model,
    tokenizer: Tokenizer | None,
    text: str | Sequence[int],
    place: tuple[int, int],
    options: ExplainOptions | None = None,
) -> AttentionMap:
    """Return the attention weights of one head, given its layer and number; layers with attention are counted."""
    reading = read(model, tokenizer, text, ExplainOptions() if options is None else options)
    layer, head = place
    found: list[AttentionMap] = []
    counts: list[int] = []

    def keep(call: PartCall, at: int) -> None:
        counts.append(at)
        if at == layer:
            found.append(attention_map(reading, call))

    _watch(reading, keep)
    if not found:
        raise UsageError(f"layer: want 0 to {len(counts) - 1}, got {layer}")
    heads = len(found[0].weights)
    if not 0 <= head < heads:
        raise UsageError(f"head: want 0 to {heads - 1}, got {head}")
    own = found[0]
    return AttentionMap(own.name, own.kind, own.queries, own.keys, own.weights[head : head + 1].clone(), None)


def _watch(reading: Reading, keep: Callable[[PartCall, int], None]) -> None:
    """Run the model once; call `keep` for every part with attention, with its number."""
    AttentionObserver(reading)  # refuses a model without attention
    count = 0

    def see(call: PartCall) -> None:
        nonlocal count
        if isinstance(call.part, ATTENDING):
            keep(call, count)
            count += 1

    with contextlib.ExitStack() as hooks, reading.looking():
        watch_parts(reading, hooks, see)
        reading.forward()


def _codes(weights: Tensor) -> Tensor:
    """Return the codes of the largest weight of each cell."""
    first, further = weights[None, :, :, :1], weights[None, :, :, 1:]
    size = [min(count, THUMBNAIL) for count in further.shape[2:]]
    cells = [F.adaptive_max_pool2d(first, (size[0], 1))]
    if size[1]:
        cells.append(F.adaptive_max_pool2d(further, size))
    return (torch.cat(cells, 3)[0].clamp(0, 1).sqrt() * LEVELS).round().to(torch.uint8)
