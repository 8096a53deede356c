"""Segment recurrence: attention over the segment and a memory of the one before (Transformer-XL, Dai et al. 2019).

The state is the layer's own latest inputs. Training on streams cuts the gradient between segments (truncated BPTT), so
that what the memory holds is not learned through, as in the paper; keys and values of it are computed anew. Scores have
four terms: content and distance of a key, each with a learned bias of its own in place of the query's position. Every
position sees as many before it as the memory holds (`same_length` in the authors' code), so that a token sees the same
whether a text is read whole, by segments, or token by token; depth carries information further.
"""

import math

import torch
from torch import Tensor, nn

from heddle.core import ConfigError, Positive, Share, part
from heddle.core.shapes import Bool, Float, Int, Stream
from heddle.nn.base import Context, Linear, Place, Role
from heddle.nn.layers import ElementDropoutConfig
from heddle.nn.positions import angles, frequencies
from heddle.nn.recurrent.recurrence import Recurrent, RecurrentConfig, document_starts
from heddle.nn.state import HiddenState

Weights = Float[Tensor, "batch heads query key"]
Remembered = Float[Tensor, "batch memory width"]
Row = Float[Tensor, "batch places width"]  # memory and new inputs


@part("segment_recurrence")
class SegmentRecurrenceConfig(RecurrentConfig):
    """Segment recurrence (Transformer-XL): self-attention that carries a memory from segment to segment.

    heads: how many attention heads.
    memory: how many positions before its own each one sees, in its segment or the ones before.
    head_width: width of each head; None: width / heads.
    dropout: attention dropout: rate on the softmax weights.
    """

    heads: Positive
    memory: Positive = 128
    head_width: Positive | None = None
    dropout: Share = 0.0

    def build(self, width: int, place: Place) -> "SegmentRecurrence":
        if width % 2:
            raise ConfigError("width", want="an even number for sinusoidal distances", got=width)
        if self.head_width is None and width % self.heads:
            raise ConfigError("heads", want=f"a divisor of the width {width}", got=self.heads)
        return SegmentRecurrence(width, self)


class SegmentRecurrence(Recurrent):
    """output(softmax((query + u) · key + (query + v) · position(distance)) · value), over memory and segment."""

    compilable = False  # not yet measured on a GPU
    roles = {"content_bias": Role.BIAS, "position_bias": Role.BIAS}

    table: Tensor  # sinusoids of the distances 0 to memory

    def __init__(self, width: int, config: SegmentRecurrenceConfig) -> None:
        super().__init__()
        self.width, self.heads, self.memory = width, config.heads, config.memory
        self.head_width = width // config.heads if config.head_width is None else config.head_width
        inner = self.heads * self.head_width
        self.query, self.key, self.value = (Linear(width, inner) for _ in range(3))
        self.position = Linear(width, inner)
        self.output = Linear(inner, width, role=Role.INTO_STREAM)
        self.content_bias = nn.Parameter(torch.empty(self.heads, self.head_width))
        self.position_bias = nn.Parameter(torch.empty(self.heads, self.head_width))
        self.dropout = ElementDropoutConfig(rate=config.dropout).build()
        self.register_buffer("table", torch.empty(config.memory + 1, width), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        if self.table.is_meta:
            return
        phases = angles(len(self.table), frequencies(self.width, 10_000.0, self.table.device))
        self.table = torch.cat((phases.sin(), phases.cos()), 1).to(self.table.dtype)

    def state_sizes(self) -> tuple[int, ...]:
        want = "none, because segment recurrence remembers earlier inputs, of which a summary is none"
        raise ConfigError("bridge", want=want, got="one that initializes its state")

    def initial_memory(self, x: Stream, slot: object) -> tuple[Remembered, Bool[Tensor, "batch memory"]]:
        """Return the inputs remembered, oldest first, and which of them there are."""
        if isinstance(slot, HiddenState):
            inputs, known = slot.vectors
            return inputs.unflatten(1, (self.memory, self.width)).to(x.dtype), known > 0
        inputs = x.new_zeros(len(x), self.memory, self.width)
        return inputs, x.new_zeros(len(x), self.memory, dtype=torch.bool)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, HiddenState]:
        """Attend over the memory and the new inputs; the latest of both are the new memory."""
        row, weights = self._attend(x, ctx, slot)
        heads = self.dropout(weights) @ self.values(row)
        y: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return y, self._remember(row, x, ctx, slot)

    def attention_weights(self, x: Stream, ctx: Context, slot: object) -> Weights:
        """Return the attention weights of the new inputs on each other; what a row lacks to one is the memory's."""
        return self._attend(x, ctx, slot)[1][..., self.memory :]

    def values(self, row: Row) -> Float[Tensor, "batch heads places head_width"]:
        """Return the values of each head."""
        value: Tensor = self.value(row)
        return self._split(value)

    def _attend(self, x: Stream, ctx: Context, slot: object) -> tuple[Row, Weights]:
        """Return memory and new inputs as one row, and the attention weights on them."""
        inputs, known = self.initial_memory(x, slot)
        row = torch.cat((inputs, x), 1)
        query, key = self._split(self.query(x)), self._split(self.key(row))
        u, v = (bias.to(x.dtype)[:, None] for bias in (self.content_bias, self.position_bias))
        by_distance = self._split(self.position(self.table.to(x.dtype))[None])
        distance = self._distances(x)
        far = distance.clamp(0, self.memory).expand(len(x), self.heads, -1, -1)
        scores = (query + u) @ key.mT + ((query + v) @ by_distance.mT).gather(-1, far)
        seen = (distance >= 0) & (distance <= self.memory)
        allowed = seen & self._readable(known, x, ctx)[:, None]
        scores = (scores / math.sqrt(self.head_width)).masked_fill(~allowed, -torch.inf)
        exact = torch.promote_types(scores.dtype, torch.float32)
        return row, scores.to(exact).softmax(-1).to(x.dtype)

    def _split(self, x: Float[Tensor, "rows places inner"]) -> Float[Tensor, "rows heads places head_width"]:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))
        return heads.transpose(1, 2)

    def _distances(self, x: Stream) -> Int[Tensor, "query key"]:
        """Return how many positions each key is before each query."""
        query = torch.arange(self.memory, self.memory + x.shape[1], device=x.device)
        return query[:, None] - torch.arange(self.memory + x.shape[1], device=x.device)

    def _readable(
        self, known: Bool[Tensor, "batch memory"], x: Stream, ctx: Context
    ) -> Bool[Tensor, "batch queries keys"]:
        """Return which keys are there and in the query's document."""
        there = torch.cat((known, known.new_ones(x.shape[:2])), 1)[:, None]
        number = self._document_numbers(ctx)
        return there if number is None else there & (number[:, self.memory :, None] == number[:, None])

    def _document_numbers(self, ctx: Context) -> Int[Tensor, "batch places"] | None:
        """Number the documents of memory and new inputs; the memory belongs to the first."""
        starts = document_starts(ctx)
        if starts is None:
            return None
        number = starts.cumsum(1)
        return torch.cat((number.new_zeros(len(number), self.memory), number), 1)

    def _remember(self, row: Row, x: Stream, ctx: Context, slot: object) -> HiddenState:
        """Return the latest inputs of each row's last document."""
        _, known = self.initial_memory(x, slot)
        there = torch.cat((known, known.new_ones(x.shape[:2])), 1)
        ends = there.new_full((len(x),), x.shape[1], dtype=torch.long) if ctx.lengths is None else ctx.lengths
        places = ends[:, None] + torch.arange(self.memory, device=x.device)
        inputs, there = row.take_along_dim(places[..., None], 1), there.take_along_dim(places, 1)
        number = self._document_numbers(ctx)
        if number is not None:
            last = number.take_along_dim((ends + self.memory - 1)[:, None], 1)
            there = there & (number.take_along_dim(places, 1) == last)
        inputs = inputs.masked_fill(~there[..., None], 0)
        return HiddenState((inputs.flatten(1), there.to(x.dtype)))

    def mixing_flops(self, length: int) -> int:
        return 6 * self.heads * self.head_width * min(length, self.memory + 1)
