"""Stepping: rows that grow on a state of fixed size, a token at a time.

The recorded step chooses the next token too, so the host has nothing to do between two tokens but to read what was
chosen, a step behind. Rows that have ended stay in their places, and nobody looks at what becomes of them.
"""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.core.shapes import Ids
from heddle.decoding.runtime import (
    CapturedGraph,
    CaptureMode,
    Prefill,
    StaticState,
    acquire,
    bucketed_capacity,
    release,
)
from heddle.decoding.sampling import (
    GenerationConfig,
    Logits,
    NextTokens,
    RowPosition,
    choose,
    greedy_tokens,
    process_logits,
)
from heddle.models.networks import AutoregressiveModel
from heddle.nn.base import fuse_linears
from heddle.nn.state import State

AHEAD = 1024  # new tokens that there is room for at first; then it doubles, so that a long wish costs nothing by itself

Found = tuple[Logits, NextTokens]  # the model's scores, and the best tokens by scores and bias


# --- one step ---------------------------------------------------------------------------------------------------------


def step(model: AutoregressiveModel, ids: Ids, bias: Float[Tensor, " vocab"], state: State) -> Found:
    """Read one token a row and write over the state and the ids; return the scores, and the ids that are next."""
    vectors, later = model.step(ids, state)
    scores = model.head.logits(vectors[:, -1])
    state.update_from(later)
    chosen = greedy_tokens(scores + bias)
    ids.copy_(chosen.clamp(min=0)[:, None])
    return scores, chosen


@final
class StaticStep(StaticState):
    """A state of fixed size, and the recorded step that moves it on by a token."""

    def __init__(self, like: State, room: int, vocab: int, kind: CaptureMode, key: object) -> None:
        device = like.lengths.device
        state = like.empty_like(room)
        self.ids: Ids = torch.zeros(len(like.lengths), 1, dtype=torch.long, device=device)
        self.bias: Float[Tensor, " vocab"] = torch.zeros(vocab, device=device)
        self.act: CapturedGraph[Found] = CapturedGraph(step, (self.ids, self.bias, state), kind)
        super().__init__(state, [self.act], key)

    def run(self, model: AutoregressiveModel) -> Found:
        """Take a step from the ids that are set, or from those that the last step chose."""
        return self.act.run(model)


# --- rows -------------------------------------------------------------------------------------------------------------


class PendingTokens:
    """Ids on their way to the host: other work may be given to the device before they are waited for."""

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


class StaticDecoder:
    """Rows that grow on a state of fixed size by what is best or drawn: a `Walk`."""

    def __init__(self, model: AutoregressiveModel, start: Prefill, config: GenerationConfig, kind: CaptureMode) -> None:
        self.model, self.config, self.kind, self.most = model, config, kind, start.most
        with torch.inference_mode(False):  # weights that move must still serve in training
            fuse_linears(model)
        self.scores, state = start.read(model)
        if config.samples > 1:
            each = torch.arange(len(self.scores), device=self.scores.device).repeat_interleave(config.samples)
            self.scores, state = self.scores[each], state.select(each)
        self.rows: Int[Tensor, " alive"] | None = None  # places of those that still grow; None: all
        self.stepping = self._on(state, max(len(prompt) for prompt in start.prompts) + AHEAD)

    def _on(self, state: State, length: int) -> StaticStep:
        """Return a stepping that goes on from a state, with room for a length or all that is wanted."""
        room = bucketed_capacity(self.model, min(length, self.most))
        self.model.decoder_tower.position.reserve(room)
        found = acquire(
            self.model,
            (StaticStep, self.kind, state.layout(room)),
            lambda key: StaticStep(state, room, self.model.vocab, self.kind, key),
        )
        found.begin(self.model, state)
        return found

    def choose(self, scores: Logits, places: list[RowPosition]) -> NextTokens:
        return choose(scores, self.config, places)

    def advance(self, chosen: NextTokens, kept: Int[Tensor, " kept"] | None, length: int) -> Logits:
        if kept is not None:
            chosen, self.rows = chosen[kept], kept if self.rows is None else self.rows[kept]
        self.reach(length)
        self.set(chosen)
        scores, _ = self.stepping.run(self.model)
        return scores if self.rows is None else scores[self.rows]

    def set(self, chosen: NextTokens) -> None:
        """Let the next step read these ids, of the rows that still grow."""
        ids = chosen.clamp(min=0)
        if self.rows is None:
            self.stepping.ids.copy_(ids[:, None])
        else:
            self.stepping.ids[self.rows, 0] = ids

    def lean(self, new: int) -> None:
        """Let the steps choose as rows that have so many new tokens must: by what is liked, banned or too early."""
        nothing = torch.zeros(1, self.model.vocab, device=self.stepping.bias.device)
        self.stepping.bias.copy_(process_logits(nothing, self.config, new)[0])

    def run(self) -> PendingTokens:
        """Take a step from the ids that were set or chosen last; return the ids that it chooses, of all rows."""
        return PendingTokens(self.stepping.run(self.model)[1])

    def reach(self, length: int) -> None:
        """Make room for a length."""
        old, room = self.stepping, self.stepping.state.capacity
        if length < room or (length == room and length >= self.most):
            return  # a row that fills its room has lost count of itself: only the last may
        self.stepping = self._on(old.state, max(length + 1, 2 * room))
        self.stepping.ids.copy_(old.ids)
        self.stepping.bias.copy_(old.bias)
        old.rest()

    def close(self) -> None:
        """Leave the recorded step to whoever comes next."""
        release(self.model, self.stepping)
