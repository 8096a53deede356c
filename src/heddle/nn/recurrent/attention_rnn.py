"""RNN with attention: a recurrent decoder that attends to the source (Bahdanau et al. 2014; Luong et al. 2015)."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Config, ConfigError, Positive, UsageError, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, CrossConfig, Linear, Module, Place, Role, upcast
from heddle.nn.recurrent.cells import GRU, LSTM, LSTMConfig
from heddle.nn.recurrent.gates import CellGates, check_whole_rows, run_gates
from heddle.nn.recurrent.recurrence import CellConfig, CellSizes, Recurrent, RowBoundaries
from heddle.nn.recurrent.rnn_op import States
from heddle.nn.state import HiddenState, Memory

Queries = Float[Tensor, "batch length hidden"]
Keys = Float[Tensor, "batch source key"]
AttentionWeights = Float[Tensor, "batch length source"]
Contexts = Float[Tensor, "batch length memory"]


# --- alignment --------------------------------------------------------------------------------------------------------


class AlignmentConfig(Config, ABC):
    """Alignment: how a decoder state is scored against each source position."""

    @abstractmethod
    def build(self, hidden: int, memory: int) -> "Alignment":
        """Build the module for states and source vectors of these sizes."""


class Alignment(Module, ABC):
    """Scores of every source position for every state; keys, which depend on the source alone, are computed once."""

    key_width: int

    @abstractmethod
    def keys(self, memory: Float[Tensor, "batch source memory"]) -> Keys:
        """Return the keys of the source positions."""

    def cast_weights(self, dtype: torch.dtype) -> States:
        """Return the weights that `forward` needs, cast once for all steps."""
        return ()

    @abstractmethod
    def forward(self, queries: Queries, keys: Keys, cast_weights: States) -> AttentionWeights:
        """Return the attention scores before the softmax."""


@part("additive")
class AdditiveAlignmentConfig(AlignmentConfig):
    """Additive attention: a hidden layer over state and source position (Bahdanau et al. 2014).

    hidden: width of the layer; None: that of the state.
    """

    hidden: Positive | None = None

    def build(self, hidden: int, memory: int) -> Alignment:
        return AdditiveAlignment(hidden, memory, hidden if self.hidden is None else self.hidden)


class AdditiveAlignment(Alignment):
    """weight · tanh(query(state) + key(source))."""

    roles = {"weight": Role.INSIDE}

    def __init__(self, hidden: int, memory: int, inner: int) -> None:
        super().__init__()
        self.key_width = inner
        self.query, self.key = Linear(hidden, inner), Linear(memory, inner)
        self.weight = nn.Parameter(torch.empty(inner))

    def keys(self, memory: Float[Tensor, "batch source memory"]) -> Keys:
        return self.key(memory)  # type: ignore[no-any-return]

    def cast_weights(self, dtype: torch.dtype) -> States:
        return self.query.dense_weight(dtype), self.weight.to(dtype)

    def forward(self, queries: Queries, keys: Keys, cast_weights: States) -> AttentionWeights:
        query, weight = cast_weights
        return (F.linear(queries, query)[:, :, None] + keys[:, None]).tanh() @ weight


@part("dot")
class DotAlignmentConfig(AlignmentConfig):
    """Dot-product attention: state · source (Luong et al. 2015)."""

    def build(self, hidden: int, memory: int) -> Alignment:
        if hidden != memory:
            raise ConfigError(
                "alignment", want=f"general, because {hidden} and {memory} features do not match", got="dot"
            )
        return DotAlignment(memory)


class DotAlignment(Alignment):
    """state · source."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.key_width = memory

    def keys(self, memory: Float[Tensor, "batch source memory"]) -> Keys:
        return memory

    def forward(self, queries: Queries, keys: Keys, cast_weights: States) -> AttentionWeights:
        return queries @ keys.transpose(1, 2)


@part("general")
class GeneralAlignmentConfig(AlignmentConfig):
    """General (bilinear) attention: state · key(source) (Luong et al. 2015)."""

    def build(self, hidden: int, memory: int) -> Alignment:
        return GeneralAlignment(hidden, memory)


class GeneralAlignment(Alignment):
    """state · key(source)."""

    def __init__(self, hidden: int, memory: int) -> None:
        super().__init__()
        self.key_width, self.key = hidden, Linear(memory, hidden)

    def keys(self, memory: Float[Tensor, "batch source memory"]) -> Keys:
        return self.key(memory)  # type: ignore[no-any-return]

    def forward(self, queries: Queries, keys: Keys, cast_weights: States) -> AttentionWeights:
        return queries @ keys.transpose(1, 2)


# --- where the context vector goes ------------------------------------------------------------------------------------


class ContextUseConfig(Config, ABC):
    """When the decoder attends, and where the context vector goes."""

    attends_first: ClassVar[bool]  # whether it attends before the cell steps, or after
    into_cell: ClassVar[bool]
    into_output: ClassVar[bool]


@part("cell")
class CellUseConfig(ContextUseConfig):
    """Attend with the previous state; the context goes into the cell."""

    attends_first, into_cell, into_output = True, True, False


@part("both")
class BothUseConfig(ContextUseConfig):
    """Attend with the previous state; the context goes into the cell and into the output (Bahdanau)."""

    attends_first, into_cell, into_output = True, True, True


@part("output")
class OutputUseConfig(ContextUseConfig):
    """Attend with the new state; the context goes into the output only, so all steps attend at once."""

    attends_first, into_cell, into_output = False, False, True


@part("input_feeding")
class InputFeedingConfig(ContextUseConfig):
    """Input feeding: attend with the new state; the output goes into the cell at the next step (Luong)."""

    attends_first, into_cell, into_output = False, True, True


# --- the mixer --------------------------------------------------------------------------------------------------------


@part("attention_rnn", was="attentive")
class AttentionRNNConfig(CrossConfig):
    """RNN with attention: the state attends to the source at every step.

    cell: the recurrent cell.
    alignment: how the state and a source position become a score.
    use: where the attended context goes.
    """

    slot = "mixer"  # besides reading the encoder's memory, it mixes along the target

    cell: CellConfig = LSTMConfig()
    alignment: AlignmentConfig = AdditiveAlignmentConfig()
    use: ContextUseConfig = BothUseConfig()

    def build(self, width: int, place: Place) -> "AttentionRNN":
        if place.memory is None:
            want = f"{self.cell.kind}, because there is no encoder to attend to"
            raise ConfigError("plan", want=want, got=self.kind)
        return AttentionRNN(width, place.memory, self, place)


@dataclass(frozen=True)
class AttentionRNNSlot:
    """The states of an RNN with attention, and the keys of its source."""

    vectors: States
    keys: Keys

    def map(self, change: Callable[[Tensor], Tensor]) -> "AttentionRNNSlot":
        """Return the slot with every tensor changed."""
        return AttentionRNNSlot(tuple(change(v) for v in self.vectors), change(self.keys))

    def resize(self, capacity: int) -> "AttentionRNNSlot":
        """Return the slot as it is: any number of tokens fits in it."""
        return self

    def can_rewind(self, tokens: int) -> bool:
        """Tell that no token can be removed: the states mix all of them."""
        return tokens == 0


@dataclass(frozen=True)
class AttendedSource:
    """The source as the target attends to it."""

    values: Float[Tensor, "batch source memory"]
    keys: Keys
    masked: Bool[Tensor, "batch 1 source"] | None
    cast_weights: States  # of the alignment


@dataclass(frozen=True)
class RNNResult:
    """Outputs of some steps, the states after them, and their attention weights."""

    outputs: Stream
    state: States
    weights: AttentionWeights


def _lstm_step(input_gates: Tensor, state: States, recurrent_weight: Tensor, bias: Tensor) -> States:
    gates = input_gates + F.linear(state[0], recurrent_weight, bias)
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=-1)
    cell = forget_gate.sigmoid() * state[1] + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def _gru_step(input_gates: Tensor, state: States, recurrent_weight: Tensor, bias: Tensor) -> States:
    hidden = state[0]
    reset, update, candidate = input_gates.chunk(3, dim=-1)
    hidden_reset, hidden_update, hidden_candidate = F.linear(hidden, recurrent_weight, bias).chunk(3, dim=-1)
    new = (candidate + (reset + hidden_reset).sigmoid() * hidden_candidate).tanh()
    return (new.lerp(hidden, (update + hidden_update).sigmoid()),)


STEPS = {LSTM: _lstm_step, GRU: _gru_step}


class AttentionRNN(Recurrent):
    """context = softmax(alignment(state, source)) · source; state = cell(x, context); tanh(combine(state, context))."""

    compilable = False  # its loop over time would be unrolled

    def __init__(self, width: int, memory: int, config: AttentionRNNConfig, place: Place) -> None:
        super().__init__()
        self.layer, self.use = place.layer, config.use
        cell = config.cell.layer(CellSizes(width, config.cell.hidden or width, width))
        if not isinstance(cell, LSTM | GRU):
            raise ConfigError("cell", want="lstm or gru, which attention can feed at every step", got=config.cell.kind)
        self.cell, self.hidden, self.width = cell, cell.hidden, width
        self.alignment = config.alignment.build(self.hidden if self.use.attends_first else width, memory)
        self.memory_width = memory
        if self.use.into_cell:
            self.enter = Linear(memory if self.use.attends_first else width, cell.gates * self.hidden)
        if self.use.into_output:
            self.combine = Linear(width + memory, width, role=Role.INTO_STREAM)

    def state_sizes(self) -> tuple[int, ...]:
        fed = (self.width,) if self.use.into_cell and not self.use.attends_first else ()
        return (*self.cell.state_sizes(), *fed)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, AttentionRNNSlot]:
        """Continue from the state, with keys that are computed once for each source."""
        source = self.source(ctx, slot)
        run = self.run(x, ctx, slot, source)
        return run.outputs, AttentionRNNSlot(run.state, source.keys)

    def attention_weights(self, x: Stream, ctx: Context, slot: object = None) -> Float[Tensor, "batch 1 length source"]:
        """Return the attention weights of each step, as one head."""
        return self.run(x, ctx, slot, self.source(ctx, slot)).weights[:, None]

    def gate_values(self, x: Stream, ctx: Context, slot: object) -> tuple[CellGates, ...]:
        """Recompute the gates of the cell, given what the attention fed into it."""
        check_whole_rows(ctx)
        start = slot.vectors if isinstance(slot, AttentionRNNSlot) else self.initial_state(x, slot)
        run, source = self.run(x, ctx, slot, self.source(ctx, slot)), self.source(ctx, slot)
        input_weight, recurrent_weight, bias, recurrent_bias = self.cell.weights(x.dtype)
        inputs, fed = F.linear(x, input_weight, bias), self.use.into_cell and not self.use.attends_first
        if self.use.into_cell:
            inputs = inputs + self.enter(
                torch.cat((start[-1][:, None], run.outputs[:, :-1]), 1) if fed else run.weights @ source.values
            )

        def step(now: Tensor, state: States) -> tuple[Mapping[str, Tensor], States]:
            return self.cell.gated_step(now, F.linear(state[0], recurrent_weight, recurrent_bias), state)

        own = start[:-1] if fed else start
        found = run_gates("cell", self.cell.kernel, inputs.unbind(1), own, step)
        return (dataclasses.replace(found, last=(*found.last, run.outputs[:, -1])) if fed else found,)

    def source(self, ctx: Context, slot: object) -> AttendedSource:
        """Return the source with its keys."""
        memory: Memory | None = ctx.memory
        if memory is None:
            raise UsageError("an RNN with attention needs a memory in the context")
        values = memory.at(self.layer)
        keys = slot.keys if isinstance(slot, AttentionRNNSlot) else self.alignment.keys(values)
        masked = None if memory.allowed is None else ~memory.allowed[:, 0]
        return AttendedSource(values, keys, masked, self.alignment.cast_weights(values.dtype))

    def run(self, x: Stream, ctx: Context, slot: object, source: AttendedSource) -> RNNResult:
        """Run over time: in a loop if the context goes into the cell, else all steps at once."""
        start = slot.vectors if isinstance(slot, AttentionRNNSlot) else self.initial_state(x, slot)
        if not self.use.into_cell:
            outputs, last = self.cell.step(x, ctx, HiddenState(start))
            contexts, weights = self.attend(outputs, source)
            return RNNResult(self.attentional_output(outputs, contexts), last.vectors, weights)
        run = self.attend_then_step if self.use.attends_first else self.step_then_attend
        return run(x, ctx, start, source)

    def attend(self, queries: Queries, source: AttendedSource) -> tuple[Contexts, AttentionWeights]:
        """Return the context vectors and the attention weights."""
        scores = upcast(self.alignment(queries, source.keys, source.cast_weights))
        if source.masked is not None:
            scores = scores.masked_fill(source.masked, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).to(source.values.dtype)
        return weights @ source.values, weights

    def attentional_output(self, outputs: Tensor, contexts: Tensor) -> Tensor:
        """Return Luong's attentional state: tanh(combine(output, context)), or the output alone."""
        return self.combine(torch.cat((outputs, contexts), -1)).tanh() if self.use.into_output else outputs

    def prepare_steps(self, x: Stream) -> tuple[States, Callable[[Tensor, Tensor, States], States]]:
        """Return the input's part of each step's gates, and the step of the cell; weights are cast once."""
        input_weight, recurrent_weight, bias, recurrent_bias = self.cell.weights(x.dtype)
        context_weight, cell_step = self.enter.dense_weight(x.dtype).t(), STEPS[type(self.cell)]

        def step_cell(input_gates: Tensor, context_input: Tensor, state: States) -> States:
            input_gates = torch.addmm(input_gates, context_input, context_weight)
            return cell_step(input_gates, state, recurrent_weight, recurrent_bias)

        return F.linear(x, input_weight, bias).unbind(1), step_cell

    def attend_then_step(self, x: Stream, ctx: Context, state: States, source: AttendedSource) -> RNNResult:
        """Attend with the previous state, then step; outputs are computed for all steps at the end."""
        (steps, step_cell), boundaries, found = self.prepare_steps(x), RowBoundaries.of(x, ctx), []
        for t, input_gates in enumerate(steps):
            old = boundaries.reset(t, state)
            context, weights = self.attend(old[0][:, None], source)
            state = step_cell(input_gates, context[:, 0], old)
            found.append((state[0], context, weights))
            state = boundaries.hold(t, state, old)
        states, contexts, attended = zip(*found, strict=True)
        outputs = self.attentional_output(self.cell.output(torch.stack(states, 1)), torch.cat(contexts, 1))
        return RNNResult(outputs, state, torch.cat(attended, 1))

    def step_then_attend(self, x: Stream, ctx: Context, state: States, source: AttendedSource) -> RNNResult:
        """Step with the last output as input, then attend (input feeding)."""
        (steps, step_cell), boundaries, found = self.prepare_steps(x), RowBoundaries.of(x, ctx), []
        for t, input_gates in enumerate(steps):
            old = boundaries.reset(t, state)
            updated = step_cell(input_gates, old[-1], old)
            output = self.cell.output(updated[0])
            context, weights = self.attend(output[:, None], source)
            output = self.attentional_output(output, context[:, 0])
            found.append((output, weights))
            state = boundaries.hold(t, (*updated, output), old)
        outputs, attended = zip(*found, strict=True)
        return RNNResult(torch.stack(outputs, 1), state, torch.cat(attended, 1))

    def mixing_flops(self, length: int) -> int:
        return 2 * length * (self.alignment.key_width + self.memory_width)
