"""Decoder loop steps: read one token for each row and return the logits of the next, on a growing or a static state.

The static decoder replays a captured step (a CUDA graph, or compiled code on a CPU). The step also chooses the most
probable token, so that greedy decoding need not wait for the host between two tokens: the host reads the chosen ids one
step late. Rows that have ended stay in the static state, and their results are ignored.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

import heddle.decoding.runtime as runtime
from heddle.core.shapes import Ids
from heddle.decoding.generation.generation_config import GenerationConfig, TokenChooser
from heddle.decoding.generation.logits import process_logits
from heddle.decoding.sampling import Logits, NextTokens, RowPosition, greedy_tokens
from heddle.models.networks import AutoregressiveModel
from heddle.nn.base import fuse_linears
from heddle.nn.state import State

AHEAD = 1024  # capacity for new tokens at first; it doubles when full: a large max_tokens costs nothing by itself

StepResult = tuple[Logits, NextTokens]  # the model's logits, and the most probable tokens by logits and bias


class StepDecoder(ABC):
    """Chooses an id for each row, then reads the ids of the rows that go on."""

    logits: Logits  # of the first new token

    @abstractmethod
    def choose(self, logits: Logits, positions: Sequence[RowPosition]) -> NextTokens:
        """Return an id for each row by its processed logits; `NO_TOKEN` where none is allowed."""

    @abstractmethod
    def advance(self, chosen: NextTokens, kept: Int[Tensor, " kept"] | None, length: int) -> Logits:
        """Read the chosen ids of the kept rows (None: all), which then have this length; return the next logits."""

    def argmax_decoder(self) -> "StaticDecoder | None":
        """Return a decoder whose captured step chooses the tokens itself, if this is one."""
        return None

    def close(self) -> None:
        """Release what later generations can reuse."""
        return


@final
class DynamicDecoder(StepDecoder):
    """Decodes eagerly on a state that grows, by a chooser of tokens."""

    def __init__(
        self, model: AutoregressiveModel, prefill: runtime.Prefill, config: GenerationConfig, chooser: TokenChooser
    ) -> None:
        self.model, self.chooser, self.prefill = model, chooser, prefill
        self.logits, self.state = _prefilled(model, prefill, config.samples)

    def choose(self, logits: Logits, positions: Sequence[RowPosition]) -> NextTokens:
        return self.chooser.choose(logits, positions)

    def advance(self, chosen: NextTokens, kept: Int[Tensor, " kept"] | None, length: int) -> Logits:
        if kept is not None:
            chosen, self.state = chosen[kept], self.state.select(kept)
        self.state = self.prefill.with_capacity(self.model, self.state, length)
        vectors, self.state = self.model.step(chosen[:, None], self.state)
        return self.model.head.logits(vectors[:, -1])


def _prefilled(model: AutoregressiveModel, prefill: runtime.Prefill, samples: int) -> tuple[Logits, State]:
    """Run prefill, and repeat each row for its samples."""
    logits, state = prefill.run(model)
    if samples == 1:
        return logits, state
    each = torch.arange(len(logits), device=logits.device).repeat_interleave(samples)
    return logits[each], state.select(each)


# --- on a static state ------------------------------------------------------------------------------------------------


def decode_one_token(model: AutoregressiveModel, ids: Ids, bias: Float[Tensor, " vocab"], state: State) -> StepResult:
    """Read one token of each row, overwriting the state and the ids; return the logits and the next ids."""
    vectors, later = model.step(ids, state)
    logits = model.head.logits(vectors[:, -1])
    state.update_from(later)
    chosen = greedy_tokens(logits + bias)
    ids.copy_(chosen.clamp(min=0)[:, None])
    return logits, chosen


@final
class StaticStep(runtime.StaticState):
    """A static state, and the captured step that advances it by a token."""

    def __init__(self, like: State, capacity: int, vocab: int, mode: runtime.CaptureMode, key: object) -> None:
        device = like.lengths.device
        state = like.empty_like(capacity)
        self.ids: Ids = torch.zeros(len(like.lengths), 1, dtype=torch.long, device=device)
        self.bias: Float[Tensor, " vocab"] = torch.zeros(vocab, device=device)
        self.graph: runtime.CapturedGraph[StepResult] = runtime.CapturedGraph(
            decode_one_token, (self.ids, self.bias, state), mode
        )
        super().__init__(state, [self.graph], key)

    def run(self, model: AutoregressiveModel) -> StepResult:
        """Take a step from the ids that are set, or from those that the last step chose."""
        return self.graph.run(model)


class PendingTokens:
    """Ids being copied to the host; the device may get other work before anyone waits for them."""

    def __init__(self, chosen: NextTokens) -> None:
        self.event: torch.cuda.Event | None = None
        self.host = torch.empty_like(chosen, device="cpu", pin_memory=chosen.is_cuda)
        self.host.copy_(chosen, non_blocking=True)
        if chosen.is_cuda:
            self.event = torch.cuda.Event()
            self.event.record()

    def ids(self) -> list[int]:
        """Wait for the ids."""
        if self.event is not None:
            self.event.synchronize()
        return self.host.tolist()


@final
class StaticDecoder(StepDecoder):
    """Decodes with a captured step on a static state, by a chooser of tokens."""

    def __init__(
        self,
        model: AutoregressiveModel,
        prefill: runtime.Prefill,
        config: GenerationConfig,
        chooser: TokenChooser,
        mode: runtime.CaptureMode,
    ) -> None:
        self.model, self.config, self.chooser, self.mode = model, config, chooser, mode
        self.max_length = prefill.max_length
        with torch.inference_mode(False):  # fused weights must still serve in training
            fuse_linears(model)
        self.logits, state = _prefilled(model, prefill, config.samples)
        self.rows: Int[Tensor, " alive"] | None = None  # places of the active rows; None: all
        self.static = self._start_from(state, max(len(prompt) for prompt in prefill.prompts) + AHEAD)

    def _start_from(self, state: State, length: int) -> StaticStep:
        """Return a static step that continues from a state, with capacity for a length within the maximum."""
        capacity = runtime.bucketed_capacity(self.model, min(length, self.max_length))
        self.model.decoder_tower.position.reserve(capacity)
        found = runtime.acquire(
            self.model,
            (StaticStep, self.mode, state.layout(capacity)),
            lambda key: StaticStep(state, capacity, self.model.vocab, self.mode, key),
        )
        found.begin(self.model, state)
        return found

    def choose(self, logits: Logits, positions: Sequence[RowPosition]) -> NextTokens:
        return self.chooser.choose(logits, positions)

    def advance(self, chosen: NextTokens, kept: Int[Tensor, " kept"] | None, length: int) -> Logits:
        if kept is not None:
            chosen, self.rows = chosen[kept], kept if self.rows is None else self.rows[kept]
        self.reserve(length)
        self.set_ids(chosen)
        logits, _ = self.static.run(self.model)
        return logits if self.rows is None else logits[self.rows]

    def argmax_decoder(self) -> "StaticDecoder | None":
        return self if self.chooser.argmax else None

    def set_ids(self, chosen: NextTokens) -> None:
        """Set the ids of the active rows that the next step reads."""
        ids = chosen.clamp(min=0)
        if self.rows is None:
            self.static.ids.copy_(ids[:, None])
        else:
            self.static.ids[self.rows, 0] = ids

    def set_bias(self, new: int) -> None:
        """Set the bias by which steps choose a token after `new` new ones: processed logits of a model of zeros."""
        zeros = torch.zeros(1, self.model.vocab, device=self.static.bias.device)
        self.static.bias.copy_(process_logits(zeros, self.config, new)[0])

    def run(self) -> PendingTokens:
        """Take a step from the ids that were set or chosen last; return the ids that it chooses, of all rows."""
        return PendingTokens(self.static.run(self.model)[1])

    def reserve(self, length: int) -> None:
        """Make sure that the state has capacity for a length."""
        old, capacity = self.static, self.static.state.capacity
        if length < capacity or (length == capacity and length >= self.max_length):
            return  # a full state no longer counts its own length: only the last step may fill it
        self.static = self._start_from(old.state, max(length + 1, 2 * capacity))
        self.static.ids.copy_(old.ids)
        self.static.bias.copy_(old.bias)
        old.synchronize()

    def close(self) -> None:
        runtime.release(self.model, self.static)
