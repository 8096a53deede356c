"""CUDA graphs: decoding steps on a state of static size, captured once and replayed; on a CPU they may be compiled.

A captured graph launches all kernels of a step at once. They read and write the memory that they used when they were
captured, so the state, the ids and the weights must stay in place.
"""

import weakref
from abc import ABC
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import chain
from types import FunctionType
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from heddle.core import UsageError
from heddle.core.system import enable_compile_cache
from heddle.decoding.runtime.limits import device_of
from heddle.decoding.runtime.prefill import Prefill
from heddle.models.networks import AutoregressiveModel
from heddle.nn.kernels import supports_pdl
from heddle.nn.state import State

BUCKET = 256  # capacities are rounded up to a multiple of it, so that one state serves many lengths
WORTH_CAPTURING = 32  # new tokens from which on capturing a step pays
MAX_CACHED = 2  # static states kept for each model
RECOMPILE_LIMIT = 64  # compilations of one function, one for each model and shape
BACKEND = "inductor"

Compile = Literal["auto", "on", "off"]
Output = TypeVar("Output")
Function = TypeVar("Function", bound=Callable[..., Any])


class CaptureMode(StrEnum):
    """How a step is repeated."""

    CAPTURED = "captured"  # a CUDA graph of torch's own kernels; on a CPU, eager
    COMPILED = "compiled"  # a CUDA graph of compiled kernels; on a CPU, compiled code


def capture_mode(model: AutoregressiveModel, prefill: Prefill, compile: Compile) -> CaptureMode | None:
    """Return how the steps of a generation run; None: eagerly, on a state that grows.

    Call it before `eval_mode`: nothing is captured of a model in training, whose weights must stay where they are.
    """
    return None if model.training else requested_mode(model, prefill, compile)


def requested_mode(model: AutoregressiveModel, prefill: Prefill, compile: Compile) -> CaptureMode | None:
    """Return the mode that was requested; auto captures on a GPU when there are enough new tokens."""
    if compile == "off" or prefill.streaming is not None:
        return None
    if not model.can_capture():
        if compile == "on":
            raise UsageError("compile: want auto or off with a memory, whose search cannot be captured, got on")
        return None
    if compile == "on":
        return CaptureMode.COMPILED if model.should_compile() else CaptureMode.CAPTURED
    new = max(end - len(prompt) for end, prompt in zip(prefill.ends, prefill.prompts, strict=True))
    return CaptureMode.CAPTURED if device_of(model).type == "cuda" and new >= WORTH_CAPTURING else None


def bucketed_capacity(model: AutoregressiveModel, length: int) -> int:
    """Return the capacity of a static state for a length: rounded up, within the model's positions."""
    capacity = -(-length // BUCKET) * BUCKET
    return capacity if model.max_length is None else min(capacity, model.max_length)


# --- one captured step ------------------------------------------------------------------------------------------------


def compile_step(function: Callable[..., Output], device: torch.device) -> Callable[..., Output]:
    """Return a function that is compiled at its first call; the compile cache keeps it for later processes."""
    enable_compile_cache()
    options: dict[str, str | int | bool | Callable[..., object]] = {"triton.enable_pdl": supports_pdl(device)}
    if BACKEND != "inductor":
        return torch.compile(function, fullgraph=True, dynamic=False, backend=BACKEND)
    if device.type == "cpu":
        return compile_for_cpu(function)
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)


def compile_for_cpu(function: Function) -> Function:
    """Return a function compiled for the tensors of its first call, without guards: call it with no others.

    Torch's guards, which check before every call whether all weights are the same, take more than a tenth of a small
    model's step. `StaticState.begin` checks once for each generation instead. Each function gets a code object of its
    own, because torch caches what it compiled by code object.
    """
    assert isinstance(function, FunctionType)
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__)
    unguarded: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards), "size_asserts": False}
    return torch.compile(own, fullgraph=True, dynamic=False, options=unguarded)  # type: ignore[return-value]


class CapturedGraph(Generic[Output]):
    """A function of a model and of tensors that stay in place, captured as a CUDA graph on a GPU."""

    def __init__(self, function: Callable[..., Output], inputs: tuple[Any, ...], mode: CaptureMode) -> None:
        self.function, self.inputs, self.mode, self.device = function, inputs, mode, inputs[0].device
        self.call = compile_step(function, self.device) if mode is CaptureMode.COMPILED else function
        self.warm = False  # it was called before, so nothing is left to compile
        self.graph: torch.cuda.CUDAGraph | None = None
        self.output: Output | None = None  # where the graph writes its output

    def run(self, model: AutoregressiveModel) -> Output:
        """Run it; read the output of a graph before the next run, which overwrites it."""
        if self.graph is None or self.output is None:
            return self._call(model)
        self.graph.replay()
        return self.output

    def recapture(self, model: AutoregressiveModel) -> None:
        """Capture or compile anew for weights at other addresses; on a GPU this runs the function a few times."""
        if self.device.type == "cuda":
            self._capture(model)
        elif self.mode is CaptureMode.COMPILED:
            self.call, self.warm = compile_step(self.function, self.device), False

    def _call(self, model: AutoregressiveModel) -> Output:
        if self.mode is not CaptureMode.COMPILED or self.warm:
            return self.call(model, *self.inputs)
        with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
            output = self.call(model, *self.inputs)
        self.warm = True
        return output

    def _capture(self, model: AutoregressiveModel) -> None:
        """Capture the graph, after two warm-up runs that compile all kernels."""
        self.graph, self.output, self.warm = None, None, False
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
                    output = self._call(model)
            except RuntimeError:  # a part synchronizes with the host; then it runs kernel by kernel
                torch.cuda.set_stream(current)
                torch.cuda.synchronize()
                return
        self.graph, self.output = graph, output


# --- a state of static size -------------------------------------------------------------------------------------------


class StaticState(ABC):  # noqa: B024 - subclasses add the steps
    """A state of static size and the captured steps on it. It holds no reference to its model."""

    def __init__(self, state: State, graphs: Sequence[CapturedGraph[Any]], key: object) -> None:
        self.state, self.graphs, self.key = state, graphs, key
        self.weights: list[tuple[weakref.ref[Tensor], int]] = []  # what the graphs read, and its address
        self.tables: list[Tensor] = []  # kept alive: longer rows may replace them in the model while these still grow

    def begin(self, model: AutoregressiveModel, state: State) -> None:
        """Copy in another state; recapture if the model's weights have moved."""
        self.state.copy_from(state)
        if self._same_weights(model):
            return
        for graph in self.graphs:
            graph.recapture(model)
        self.weights = [(weakref.ref(t), t.data_ptr()) for t in chain(model.parameters(), model.buffers())]
        self.tables = list(model.buffers())
        self.state.copy_from(state)

    def _same_weights(self, model: AutoregressiveModel) -> bool:
        """Tell whether all that the graphs read is at the same address."""
        now = list(chain(model.parameters(), model.buffers()))
        same = len(now) == len(self.weights)
        return same and all(t is own() and t.data_ptr() == at for t, (own, at) in zip(now, self.weights, strict=True))

    def synchronize(self) -> None:
        """Wait until no graph is running, before its memory is freed."""
        if any(graph.graph is not None for graph in self.graphs):
            torch.cuda.synchronize(self.state.lengths.device)


S = TypeVar("S", bound=StaticState)

_CACHED: "weakref.WeakKeyDictionary[nn.Module, OrderedDict[object, StaticState]]" = weakref.WeakKeyDictionary()


def acquire(model: AutoregressiveModel, key: object, make: Callable[[object], S]) -> S:
    """Take a model's static state for a key out of the cache, or make one."""
    found: Any = _CACHED.get(model, OrderedDict()).pop(key, None)
    return make(key) if found is None else found


def release(model: AutoregressiveModel, static: StaticState) -> None:
    """Return a static state to the cache, which keeps the latest few."""
    cached = _CACHED.setdefault(model, OrderedDict())
    if (before := cached.pop(static.key, None)) is not None:
        before.synchronize()
    cached[static.key] = static
    while len(cached) > MAX_CACHED:
        cached.popitem(last=False)[1].synchronize()


def clear_static_states(model: AutoregressiveModel) -> None:
    """Free all cached static states of a model."""
    for static in _CACHED.pop(model, OrderedDict()).values():
        static.synchronize()
