"""Recorded: what a model does on a state of fixed size, made ready once and then done again and again.

On a CUDA device it is a graph: one launch for all of its kernels, which read and write where they did when they were
recorded. On a CPU it may be compiled alone.
"""

import weakref
from abc import ABC
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from heddle.core.system import enable_compile_cache
from heddle.decoding.runtime.compiled_step import compile_for_cpu
from heddle.decoding.runtime.limits import device_of
from heddle.decoding.runtime.prefill import Prefill
from heddle.decoding.sampling import GenerationConfig
from heddle.models.networks import AutoregressiveModel
from heddle.nn.kernels import supports_pdl
from heddle.nn.state import State

BUCKET = 256  # tokens by which rooms are rounded up, so that one serves many lengths
ENOUGH = 32  # new tokens for which a step is worth recording
KEPT = 2  # of a model's that are kept for later; each holds a state
VARIANTS = 64  # compilations of one function, one for each model and shape
BACKEND = "inductor"

Found = TypeVar("Found")


class CaptureMode(StrEnum):
    """How something is done again."""

    RECORDED = "recorded"  # as a graph of torch's own kernels; on a CPU, one by one
    COMPILED = "compiled"  # as a graph of compiled kernels; on a CPU, compiled alone


def capture_mode(model: AutoregressiveModel, start: Prefill, config: GenerationConfig) -> CaptureMode | None:
    """Return how the rows of an opening should go on; None: on a state that grows with them.

    To be asked before the model is put at rest: weights in training stay where they are, so nothing is recorded of it.
    """
    return None if model.training else requested_mode(model, start, config)


def requested_mode(model: AutoregressiveModel, start: Prefill, config: GenerationConfig) -> CaptureMode | None:
    """Return what was asked for, or what pays by itself."""
    if config.compile == "off":
        return None
    if config.compile == "on":
        return CaptureMode.COMPILED if model.worth_compiling() else CaptureMode.RECORDED
    more = max(end - len(prompt) for end, prompt in zip(start.ends, start.prompts, strict=True))
    return CaptureMode.RECORDED if device_of(model).type == "cuda" and more >= ENOUGH else None


def bucketed_capacity(model: AutoregressiveModel, length: int) -> int:
    """Return the room of a state in which rows reach a length: rounded up, within the model's positions."""
    room = -(-length // BUCKET) * BUCKET
    return room if model.max_length is None else min(room, model.max_length)


# --- one act ----------------------------------------------------------------------------------------------------------


def compiled(act: Callable[..., Found], device: torch.device) -> Callable[..., Found]:
    """Return a function that is compiled when it is first called, and kept for later processes."""
    enable_compile_cache()
    options: dict[str, str | int | bool | Callable[..., object]] = {"triton.enable_pdl": supports_pdl(device)}
    if BACKEND != "inductor":
        return torch.compile(act, fullgraph=True, dynamic=False, backend=BACKEND)
    if device.type == "cpu":
        return compile_for_cpu(act)
    return torch.compile(act, fullgraph=True, dynamic=False, options=options)


class CapturedGraph(Generic[Found]):
    """A function of a model and of tensors, the first and more, that stay where they are."""

    def __init__(self, function: Callable[..., Found], given: tuple[Any, ...], kind: CaptureMode) -> None:
        self.function, self.given, self.kind, self.device = function, given, kind, given[0].device
        self.take = compiled(function, self.device) if kind is CaptureMode.COMPILED else function
        self.made = False  # whether it was taken before, so that nothing is left to compile
        self.graph: torch.cuda.CUDAGraph | None = None
        self.found: Found | None = None  # where the graph leaves what it finds

    def run(self, model: AutoregressiveModel) -> Found:
        """Do it; what a graph finds is to be read before the next time."""
        if self.graph is None or self.found is None:
            return self._call(model)
        self.graph.replay()
        return self.found

    def prepare(self, model: AutoregressiveModel) -> None:
        """Make ready for weights that lie elsewhere; on a GPU it is done a few times, and writes where it writes."""
        if self.device.type == "cuda":
            self._record(model)
        elif self.kind is CaptureMode.COMPILED:
            self.take, self.made = compiled(self.function, self.device), False

    def _call(self, model: AutoregressiveModel) -> Found:
        if self.kind is not CaptureMode.COMPILED or self.made:
            return self.take(model, *self.given)
        with torch._dynamo.config.patch(recompile_limit=VARIANTS):
            found = self.take(model, *self.given)
        self.made = True
        return found

    def _record(self, model: AutoregressiveModel) -> None:
        """Record it, after it was done twice so that all of its kernels are made."""
        self.graph, self.found, self.made = None, None, False
        with torch.cuda.device(self.device):
            current, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._call(model)
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    found = self._call(model)
            except RuntimeError:  # a part asks the host for something; then it is done kernel by kernel
                torch.cuda.set_stream(current)
                torch.cuda.synchronize()
                return
        self.graph, self.found = graph, found


# --- a state of fixed size --------------------------------------------------------------------------------------------


class StaticState(ABC):  # noqa: B024 - what is done on the state is for each kind to say
    """A state of fixed size, and the acts on it. It does not hold on to its model."""

    def __init__(self, state: State, acts: Sequence[CapturedGraph[Any]], key: object) -> None:
        self.state, self.acts, self.key = state, acts, key
        self.weights: list[tuple[weakref.ref[Tensor], int]] = []  # what the acts read, and where it lay
        self.tables: list[Tensor] = []  # of it, what longer rows may replace in the model while these still grow

    def begin(self, model: AutoregressiveModel, state: State) -> None:
        """Go on from another state; the acts are made ready anew if the model's weights have moved."""
        self.state.copy_from(state)
        if self._knows(model):
            return
        for act in self.acts:
            act.prepare(model)
        self.weights = [(weakref.ref(t), t.data_ptr()) for t in chain(model.parameters(), model.buffers())]
        self.tables = list(model.buffers())
        self.state.copy_from(state)

    def _knows(self, model: AutoregressiveModel) -> bool:
        """Tell whether all that the acts read is where it was."""
        now = list(chain(model.parameters(), model.buffers()))
        same = len(now) == len(self.weights)
        return same and all(t is own() and t.data_ptr() == at for t, (own, at) in zip(now, self.weights, strict=True))

    def rest(self) -> None:
        """Wait until nothing of it is at work, before its memory goes."""
        if any(act.graph is not None for act in self.acts):
            torch.cuda.synchronize(self.state.lengths.device)


Kept = TypeVar("Kept", bound=StaticState)

_KEPT: "weakref.WeakKeyDictionary[nn.Module, OrderedDict[object, StaticState]]" = weakref.WeakKeyDictionary()


def acquire(model: AutoregressiveModel, key: object, make: Callable[[object], Kept]) -> Kept:
    """Return what is kept of a model under a key, or make it; nobody else has it meanwhile."""
    found: Any = _KEPT.get(model, OrderedDict()).pop(key, None)
    return make(key) if found is None else found


def release(model: AutoregressiveModel, fixed: StaticState) -> None:
    """Keep it for later; of many, the latest are kept."""
    kept = _KEPT.setdefault(model, OrderedDict())
    if (before := kept.pop(fixed.key, None)) is not None:
        before.rest()
    kept[fixed.key] = fixed
    while len(kept) > KEPT:
        kept.popitem(last=False)[1].rest()


def clear_static_states(model: AutoregressiveModel) -> None:
    """Give back the memory of all that is kept of a model."""
    for fixed in _KEPT.pop(model, OrderedDict()).values():
        fixed.rest()
