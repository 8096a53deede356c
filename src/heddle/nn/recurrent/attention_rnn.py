"""Attentive recurrence: attention inside the decoder's own time loop (Bahdanau et al. 2014; Luong et al. 2015)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, ConfigError, UsageError, check_at_least, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, CrossConfig, Linear, Module, Place, Role, upcast
from heddle.nn.recurrent.cells import GRU, LSTM, LSTMConfig
from heddle.nn.recurrent.recurrence import CellConfig, Recurrent, Sizes, document_starts
from heddle.nn.recurrent.rnn_op import Vectors
from heddle.nn.state import HiddenState, Memory

Queries = Float[Tensor, "batch length hidden"]
Keys = Float[Tensor, "batch source key"]
Weights = Float[Tensor, "batch length source"]


# --- alignment --------------------------------------------------------------------------------------------------------


class AlignmentConfig(Config, ABC):
    """How a state of the decoder is held against each place of the source."""

    @abstractmethod
    def build(self, hidden: int, memory: int) -> "Alignment":
        """Build the module for states and places of these sizes."""


class Alignment(Module, ABC):
    """Scores of every place for every state; what depends on the source alone is computed once, as its keys."""

    key_width: int

    @abstractmethod
    def keys(self, memory: Float[Tensor, "batch source memory"]) -> Keys:
        """Return what the states meet."""

    def tools(self, dtype: torch.dtype) -> Vectors:
        """Return the weights that states meet, cast once for all steps."""
        return ()

    @abstractmethod
    def forward(self, queries: Queries, keys: Keys, tools: Vectors) -> Weights:
        """Return the scores, before the softmax."""


@part("additive")
class AdditiveAlignmentConfig(AlignmentConfig):
    """A hidden layer sees state and place (Bahdanau et al. 2014)."""

    hidden: int | None = None  # of the layer; None: as wide as the state

    def __post_init__(self) -> None:
        check_at_least(1, hidden=self.hidden)

    def build(self, hidden: int, memory: int) -> Alignment:
        return AdditiveAlignment(hidden, memory, hidden if self.hidden is None else self.hidden)


class AdditiveAlignment(Alignment):
    """weight · tanh(query(state) + key(place))."""

    roles = {"weight": Role.INSIDE}

    def __init__(self, hidden: int, memory: int, between: int) -> None:
        super().__init__()
        self.key_width = between
        self.query, self.key = Linear(hidden, between), Linear(memory, between)
        self.weight = nn.Parameter(torch.empty(between))

    def keys(self, memory: Float[Tensor, "batch source memory"]) -> Keys:
        return self.key(memory)  # type: ignore[no-any-return]

    def tools(self, dtype: torch.dtype) -> Vectors:
        return self.query.dense_weight(dtype), self.weight.to(dtype)

    def forward(self, queries: Queries, keys: Keys, tools: Vectors) -> Weights:
        query, weight = tools
        return (F.linear(queries, query)[:, :, None] + keys[:, None]).tanh() @ weight


@part("dot")
class DotAlignmentConfig(AlignmentConfig):
    """The plain product of state and place (Luong et al. 2015)."""

    def build(self, hidden: int, memory: int) -> Alignment:
        if hidden != memory:
            raise ConfigError("alignment", want=f"general, for {hidden} and {memory} numbers do not match", got="dot")
        return DotAlignment(memory)


class DotAlignment(Alignment):
    """state · place."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.key_width = memory

    def keys(self, memory: Float[Tensor, "batch source memory"]) -> Keys:
        return memory

    def forward(self, queries: Queries, keys: Keys, tools: Vectors) -> Weights:
        return queries @ keys.transpose(1, 2)


@part("general")
class GeneralAlignmentConfig(AlignmentConfig):
    """The product of the state and a learned image of the place (Luong et al. 2015)."""

    def build(self, hidden: int, memory: int) -> Alignment:
        return GeneralAlignment(hidden, memory)


class GeneralAlignment(Alignment):
    """state · key(place)."""

    def __init__(self, hidden: int, memory: int) -> None:
        super().__init__()
        self.key_width, self.key = hidden, Linear(memory, hidden)

    def keys(self, memory: Float[Tensor, "batch source memory"]) -> Keys:
        return self.key(memory)  # type: ignore[no-any-return]

    def forward(self, queries: Queries, keys: Keys, tools: Vectors) -> Weights:
        return queries @ keys.transpose(1, 2)


# --- where the context goes -------------------------------------------------------------------------------------------


class ContextUseConfig(Config, ABC):
    """When the source is asked, and where its answer, the context, goes."""

    first: ClassVar[bool]  # whether the state asks before the cell moves it, or after
    into_cell: ClassVar[bool]
    into_output: ClassVar[bool]


@part("cell")
class CellUseConfig(ContextUseConfig):
    """The old state asks; the context goes into the cell."""

    first, into_cell, into_output = True, True, False


@part("both")
class BothUseConfig(ContextUseConfig):
    """The old state asks; the context goes into the cell and, with the new state, into the output (Bahdanau)."""

    first, into_cell, into_output = True, True, True


@part("output")
class OutputUseConfig(ContextUseConfig):
    """The new state asks; the context goes into the output only, so the cell never waits for attention."""

    first, into_cell, into_output = False, False, True


@part("input_feeding")
class InputFeedingConfig(ContextUseConfig):
    """The new state asks; the output made with the context goes into the cell at the next step (Luong)."""

    first, into_cell, into_output = False, True, True


# --- the mixer --------------------------------------------------------------------------------------------------------


@part("attentive")
class AttentionRNNConfig(CrossConfig):
    """Carry a state that looks at the source at every step."""

    slot = "mixer"  # it reads the encoder's memory, and moves information along the target too

    cell: CellConfig = LSTMConfig()
    alignment: AlignmentConfig = AdditiveAlignmentConfig()
    use: ContextUseConfig = BothUseConfig()

    def build(self, width: int, place: Place) -> "AttentionRNN":
        if place.memory is None:
            raise ConfigError("plan", want=f"{self.cell.kind}, for there is no encoder to read", got=self.kind)
        return AttentionRNN(width, place.memory, self, place)


@dataclass(frozen=True)
class AttentionRNNSlot:
    """What an attentive part carries, beside the keys of its source."""

    vectors: Vectors
    keys: Keys

    def map(self, change: Callable[[Tensor], Tensor]) -> "AttentionRNNSlot":
        """Return the slot with every tensor changed."""
        return AttentionRNNSlot(tuple(change(v) for v in self.vectors), change(self.keys))

    def resize(self, capacity: int) -> "AttentionRNNSlot":
        """Return the slot as it is: any number of tokens fits in it."""
        return self

    def can_rewind(self, tokens: int) -> bool:
        """Tell that nothing can be taken back: what went into the vectors is not there by itself."""
        return tokens == 0


@dataclass(frozen=True)
class Source:
    """What a row of the target may ask."""

    places: Float[Tensor, "batch source memory"]
    keys: Keys
    barred: Bool[Tensor, "batch 1 source"] | None
    tools: Vectors  # of the alignment


@dataclass(frozen=True)
class Run:
    """What came of a stretch of the target: outputs, what is carried on, and what each step looked at."""

    outputs: Stream
    carried: Vectors
    weights: Weights


def _move_lstm(inward: Tensor, carried: Vectors, across: Tensor, bias: Tensor) -> Vectors:
    gates = inward + F.linear(carried[0], across, bias)
    enter, forget, new, leave = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * carried[1] + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _move_gru(inward: Tensor, carried: Vectors, across: Tensor, bias: Tensor) -> Vectors:
    hidden = carried[0]
    reset, update, new = inward.chunk(3, dim=-1)
    past_reset, past_update, past_new = F.linear(hidden, across, bias).chunk(3, dim=-1)
    fresh = (new + (reset + past_reset).sigmoid() * past_new).tanh()
    return (fresh.lerp(hidden, (update + past_update).sigmoid()),)


MOVES = {LSTM: _move_lstm, GRU: _move_gru}


class AttentionRNN(Recurrent):
    """context = softmax(alignment(state, places)) · places; state = cell(x, context); tanh(combine(state, context))."""

    compilable = False  # its loop over time would be unrolled

    def __init__(self, width: int, memory: int, config: AttentionRNNConfig, place: Place) -> None:
        super().__init__()
        self.layer, self.use = place.layer, config.use
        cell = config.cell.layer(Sizes(width, config.cell.hidden or width, width))
        if not isinstance(cell, LSTM | GRU):
            raise ConfigError("cell", want="lstm or gru, which attention can feed at every step", got=config.cell.kind)
        self.cell, self.hidden, self.width = cell, cell.hidden, width
        self.alignment = config.alignment.build(self.hidden if self.use.first else width, memory)
        self.mixed = memory
        if self.use.into_cell:
            self.enter = Linear(memory if self.use.first else width, cell.gates * self.hidden)
        if self.use.into_output:
            self.combine = Linear(width + memory, width, role=Role.INTO_STREAM)

    def state_sizes(self) -> tuple[int, ...]:
        fed = (self.width,) if self.use.into_cell and not self.use.first else ()
        return (*self.cell.state_sizes(), *fed)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, AttentionRNNSlot]:
        """Go on from the carried vectors, with keys that are made once for each source."""
        source = self.source(ctx, slot)
        run = self.run(x, ctx, slot, source)
        return run.outputs, AttentionRNNSlot(run.carried, source.keys)

    def attention_weights(self, x: Stream, ctx: Context, slot: object = None) -> Float[Tensor, "batch 1 length source"]:
        """Return what each step looks at: one head."""
        return self.run(x, ctx, slot, self.source(ctx, slot)).weights[:, None]

    def source(self, ctx: Context, slot: object) -> Source:
        """Return what the steps may ask."""
        memory: Memory | None = ctx.memory
        if memory is None:
            raise UsageError("an attentive part needs a memory in the context")
        places = memory.at(self.layer)
        keys = slot.keys if isinstance(slot, AttentionRNNSlot) else self.alignment.keys(places)
        barred = None if memory.allowed is None else ~memory.allowed[:, 0]
        return Source(places, keys, barred, self.alignment.tools(places.dtype))

    def run(self, x: Stream, ctx: Context, slot: object, source: Source) -> Run:
        """Run over time: in a loop where the context goes into the cell, else all at once."""
        start = slot.vectors if isinstance(slot, AttentionRNNSlot) else self.begin(x, slot)
        if not self.use.into_cell:
            outputs, last = self.cell.step(x, ctx, HiddenState(start))
            contexts, weights = self.attend(outputs, source)
            return Run(self.finish(outputs, contexts), last.vectors, weights)
        return self.ask_first(x, ctx, start, source) if self.use.first else self.ask_after(x, ctx, start, source)

    def attend(self, queries: Queries, source: Source) -> tuple[Float[Tensor, "batch length memory"], Weights]:
        """Return the mean of the places, and the weights by which it was taken."""
        scores = upcast(self.alignment(queries, source.keys, source.tools))
        if source.barred is not None:
            scores = scores.masked_fill(source.barred, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).to(source.places.dtype)
        return weights @ source.places, weights

    def finish(self, outputs: Tensor, contexts: Tensor) -> Tensor:
        """Return what leaves this part for some outputs of the cell and their contexts."""
        return self.combine(torch.cat((outputs, contexts), -1)).tanh() if self.use.into_output else outputs

    def prepare(self, x: Stream) -> tuple[Vectors, Callable[[Tensor, Tensor, Vectors], Vectors]]:
        """Return what the input gives to each step's gates, and how the cell moves; weights are cast once for all."""
        into, across, bias, bias_across = self.cell.weights(x.dtype)
        enter, move = self.enter.dense_weight(x.dtype).t(), MOVES[type(self.cell)]

        def go_on(inward: Tensor, entering: Tensor, carried: Vectors) -> Vectors:
            return move(torch.addmm(inward, entering, enter), carried, across, bias_across)

        return F.linear(x, into, bias).unbind(1), go_on

    def ask_first(self, x: Stream, ctx: Context, carried: Vectors, source: Source) -> Run:
        """Let the old state ask, then move it; the outputs can wait until all states are there."""
        (steps, go_on), rows, found = self.prepare(x), Rows.of(x, ctx), []
        for t, inward in enumerate(steps):
            old = rows.begin(t, carried)
            context, weights = self.attend(old[0][:, None], source)
            carried = go_on(inward, context[:, 0], old)
            found.append((carried[0], context, weights))
            carried = rows.end(t, carried, old)
        states, contexts, looks = zip(*found, strict=True)
        outputs = self.finish(self.cell.output(torch.stack(states, 1)), torch.cat(contexts, 1))
        return Run(outputs, carried, torch.cat(looks, 1))

    def ask_after(self, x: Stream, ctx: Context, carried: Vectors, source: Source) -> Run:
        """Move the state with the last output, then let it ask."""
        (steps, go_on), rows, found = self.prepare(x), Rows.of(x, ctx), []
        for t, inward in enumerate(steps):
            old = rows.begin(t, carried)
            moved = go_on(inward, old[-1], old)
            output = self.cell.output(moved[0])
            context, weights = self.attend(output[:, None], source)
            output = self.finish(output, context[:, 0])
            found.append((output, weights))
            carried = rows.end(t, (*moved, output), old)
        outputs, looks = zip(*found, strict=True)
        return Run(torch.stack(outputs, 1), carried, torch.cat(looks, 1))

    def mixing_flops(self, length: int) -> int:
        return 2 * length * (self.alignment.key_width + self.mixed)


@dataclass(frozen=True)
class Rows:
    """Where documents begin and rows end, for a loop over time."""

    begins: tuple[Bool[Tensor, "batch 1"], ...] | None
    real: tuple[Bool[Tensor, "batch 1"], ...] | None

    @classmethod
    def of(cls, x: Stream, ctx: Context) -> "Rows":
        """Read them from the context; what is carried belongs to a row's first document."""
        return cls(*(None if r is None else r[..., None].unbind(1) for r in (document_starts(ctx), ctx.real(x))))

    def begin(self, t: int, carried: Vectors) -> Vectors:
        """Forget the last document where another begins."""
        return carried if self.begins is None else tuple(v.masked_fill(self.begins[t], 0) for v in carried)

    def end(self, t: int, carried: Vectors, old: Vectors) -> Vectors:
        """Keep what was carried where the token is padding."""
        if self.real is None:
            return carried
        return tuple(v.where(self.real[t], o) for v, o in zip(carried, old, strict=True))
