"""Stepping: rows that grow on a state of fixed size, by one step that is recorded once and then run again and again.

On a CUDA device the recorded step is a graph: one launch for all of its kernels, which read and write where they did
when they were recorded, and choose the next token too. So the host has nothing to do between two tokens but to read
what was chosen, a step behind. Rows that have ended stay in their places, and nobody looks at what becomes of them.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.core import keep_compiled
from heddle.core.shapes import Ids
from heddle.decoding.alone import compiled_alone
from heddle.decoding.filters import Scores
from heddle.decoding.how import How
from heddle.decoding.opening import Opening
from heddle.decoding.preparing import prepared
from heddle.decoding.reach import device_of, writer_of
from heddle.decoding.sampling import Chosen, Place, choose, marked
from heddle.models import Predictor
from heddle.nn import State, begins_early, lay_together

BUCKET = 256  # tokens by which rooms are rounded up, so that a step serves many lengths
AHEAD = 1024  # new tokens that there is room for at first; then it doubles, so that a long wish costs nothing by itself
ENOUGH = 32  # new tokens for which a step is worth recording
KEPT = 2  # recorded steps of a model that are kept for later; each holds a state
VARIANTS = 64  # compilations of the step, one for each model and shape
BACKEND = "inductor"

Found = tuple[Scores, Chosen]  # the model's scores, and the best tokens by scores and bias
Take = Callable[[Predictor, Ids, Tensor, State], Found]


class Kind(StrEnum):
    """How a step is run again."""

    RECORDED = "recorded"  # as a graph of torch's own kernels; on a CPU, one by one
    COMPILED = "compiled"  # as a graph of compiled kernels; on a CPU, compiled alone


def kind_for(model: Predictor, start: Opening, how: How) -> Kind | None:
    """Return how the rows of an opening should go on step by step; None: on a state that grows with them."""
    if how.compile == "off":
        return None
    if how.compile == "on":
        return Kind.COMPILED if model.worth_compiling() else Kind.RECORDED
    more = max(end - len(prompt) for end, prompt in zip(start.ends, start.prompts, strict=True))
    return Kind.RECORDED if device_of(model).type == "cuda" and more >= ENOUGH else None


# --- one step ---------------------------------------------------------------------------------------------------------


def step(model: Predictor, ids: Ids, bias: Float[Tensor, " vocab"], state: State) -> Found:
    """Read one token a row and write over the state and the ids; return the scores, and the ids that are next."""
    vectors, later = model.step(ids, state)
    scores = model.head.logits(vectors[:, -1])
    state.take(later)
    chosen = marked(scores + bias)
    ids.copy_(chosen.clamp(min=0)[:, None])
    return scores, chosen


def _compiled(device: torch.device) -> Take:
    """Return the step, compiled when it is first taken, and kept for later processes."""
    keep_compiled()
    options: dict[str, str | int | bool | Callable[..., object]] = {"triton.enable_pdl": begins_early(device)}
    if BACKEND != "inductor":
        return torch.compile(step, fullgraph=True, dynamic=False, backend=BACKEND)
    if device.type == "cpu":
        return compiled_alone(step)
    return torch.compile(step, fullgraph=True, dynamic=False, options=options)


class Stepping:
    """A state of fixed size, and the recorded step that moves it on by a token. It does not hold on to its model."""

    def __init__(self, like: State, room: int, vocab: int, kind: Kind) -> None:
        device = like.lengths.device
        self.state, self.kind = like.blank(room), kind
        self.ids: Ids = torch.zeros(len(like.lengths), 1, dtype=torch.long, device=device)
        self.bias: Float[Tensor, " vocab"] = torch.zeros(vocab, device=device)
        self.take: Take = _compiled(device) if kind is Kind.COMPILED else step
        self.made = False  # whether the step was taken before, so that nothing is left to compile
        self.weights: list[tuple[weakref.ref[Tensor], int]] = []  # what the recorded step reads, and where it lay
        self.graph: torch.cuda.CUDAGraph | None = None
        self.found: Found | None = None  # where the graph leaves what it finds

    def begin(self, model: Predictor, state: State) -> None:
        """Go on from another state; the step is recorded anew if the model's weights have moved."""
        self.state.fill(state)
        if self._knows(model):
            return
        if self.state.lengths.is_cuda:
            self._record(model)
            self.state.fill(state)
        elif self.kind is Kind.COMPILED:
            self.take, self.made = _compiled(self.state.lengths.device), False
            self.weights = _places(model)

    def run(self, model: Predictor) -> Found:
        """Take a step from the ids that are set, or from those that the last step chose."""
        if self.graph is None or self.found is None:
            return self._call(model)
        self.graph.replay()
        return self.found

    def _call(self, model: Predictor) -> Found:
        if self.kind is not Kind.COMPILED:
            return self.take(model, self.ids, self.bias, self.state)
        if self.made:
            return self.take(model, self.ids, self.bias, self.state)
        with torch._dynamo.config.patch(recompile_limit=VARIANTS):
            found = self.take(model, self.ids, self.bias, self.state)
        self.made = True
        return found

    def _knows(self, model: Predictor) -> bool:
        """Tell whether all that the recorded step reads is where it was."""
        now = list(chain(model.parameters(), model.buffers()))
        same = len(now) == len(self.weights)
        return same and all(t is own() and t.data_ptr() == at for t, (own, at) in zip(now, self.weights, strict=True))

    def _record(self, model: Predictor) -> None:
        """Record the step, after it was taken twice so that all of its kernels are made."""
        self.graph, self.found, self.made = None, None, False
        device = self.ids.device
        with torch.cuda.device(device):
            current, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._call(model)
            current.wait_stream(side)
            self.weights = _places(model)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    found = self._call(model)
            except RuntimeError:  # a part asks the host for something; then steps are taken one by one
                torch.cuda.set_stream(current)
                torch.cuda.synchronize()
                return
        self.graph, self.found = graph, found

    def rest(self) -> None:
        """Wait until nothing of it is at work, before its memory goes."""
        if self.graph is not None:
            torch.cuda.synchronize(self.ids.device)


def _places(model: Predictor) -> list[tuple[weakref.ref[Tensor], int]]:
    """Return all that a step reads of a model, and where it lies."""
    return [(weakref.ref(t), t.data_ptr()) for t in chain(model.parameters(), model.buffers())]


# --- steps that are kept ----------------------------------------------------------------------------------------------

_KEPT: "weakref.WeakKeyDictionary[nn.Module, OrderedDict[object, Stepping]]" = weakref.WeakKeyDictionary()


def borrow(model: Predictor, state: State, room: int, kind: Kind) -> Stepping:
    """Return a stepping for states of this shape, one that is kept if there is; nobody else has it meanwhile."""
    kept = _KEPT.get(model, OrderedDict())
    found = kept.pop((kind, state.shape(room)), None)
    if found is None:
        found = Stepping(state, room, model.vocab, kind)
    return found


def give_back(model: Predictor, stepping: Stepping) -> None:
    """Keep a stepping for later; of many, the latest are kept."""
    kept = _KEPT.setdefault(model, OrderedDict())
    kept[stepping.kind, stepping.state.shape(stepping.state.room)] = stepping
    while len(kept) > KEPT:
        kept.popitem(last=False)[1].rest()


def forget(model: Predictor) -> None:
    """Give back the memory of all steps that are kept for a model."""
    for stepping in _KEPT.pop(model, OrderedDict()).values():
        stepping.rest()


# --- rows -------------------------------------------------------------------------------------------------------------


class Told:
    """Ids on their way to the host: other work may be given to the device before they are waited for."""

    def __init__(self, chosen: Chosen) -> None:
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


class FixedWalk:
    """Rows that grow on a state of fixed size by what is best or drawn: a `Walk`."""

    def __init__(self, model: Predictor, start: Opening, how: How, kind: Kind) -> None:
        self.model, self.how, self.kind, self.most = model, how, kind, start.most
        with torch.inference_mode(False):  # weights that move must still serve in training
            lay_together(model)
        self.scores, state = start.read(model)
        if how.samples > 1:
            each = torch.arange(len(self.scores), device=self.scores.device).repeat_interleave(how.samples)
            self.scores, state = self.scores[each], state.select(each)
        self.rows: Int[Tensor, " alive"] | None = None  # places of those that still grow; None: all
        self.stepping = self._on(state, max(len(prompt) for prompt in start.prompts) + AHEAD)

    def _on(self, state: State, length: int) -> Stepping:
        """Return a stepping that goes on from a state, with room for a length or all that is wanted."""
        room = -(-min(length, self.most) // BUCKET) * BUCKET
        room = room if self.model.longest is None else min(room, self.model.longest)
        writer_of(self.model).position.reach(room)
        found = borrow(self.model, state, room, self.kind)
        found.begin(self.model, state)
        return found

    def choose(self, scores: Scores, places: list[Place]) -> Chosen:
        return choose(scores, self.how, places)

    def advance(self, chosen: Chosen, kept: Int[Tensor, " kept"] | None, length: int) -> Scores:
        if kept is not None:
            chosen, self.rows = chosen[kept], kept if self.rows is None else self.rows[kept]
        self.reach(length)
        self.set(chosen)
        scores, _ = self.stepping.run(self.model)
        return scores if self.rows is None else scores[self.rows]

    def set(self, chosen: Chosen) -> None:
        """Let the next step read these ids, of the rows that still grow."""
        ids = chosen.clamp(min=0)
        if self.rows is None:
            self.stepping.ids.copy_(ids[:, None])
        else:
            self.stepping.ids[self.rows, 0] = ids

    def lean(self, new: int) -> None:
        """Let the steps choose as rows that have so many new tokens must: by what is liked, banned or too early."""
        nothing = torch.zeros(1, self.model.vocab, device=self.stepping.bias.device)
        self.stepping.bias.copy_(prepared(nothing, self.how, new)[0])

    def run(self) -> Told:
        """Take a step from the ids that were set or chosen last; return the ids that it chooses, of all rows."""
        return Told(self.stepping.run(self.model)[1])

    def reach(self, length: int) -> None:
        """Make room for a length."""
        old, room = self.stepping, self.stepping.state.room
        if length < room or (length == room and length >= self.most):
            return  # a row that fills its room has lost count of itself: only the last may
        self.stepping = self._on(old.state, max(length + 1, 2 * room))
        self.stepping.ids.copy_(old.ids)
        self.stepping.bias.copy_(old.bias)
        old.rest()

    def close(self) -> None:
        """Leave the recorded step to whoever comes next."""
        give_back(self.model, self.stepping)
