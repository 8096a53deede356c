"""RNN operator: runs a cell over time, in plain code or, inside a compiled graph, as one op that is not unrolled.

A compiler would turn torch's recurrences into thousands of small products, and break its graph where rows hold several
documents, whose number it cannot know. As an operator the run is a single node with its own gradient. On a GPU that
gradient is cuDNN's, from the reserve of the forward pass; elsewhere, and for cells that cuDNN lacks, the backward pass
runs the cell again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

States = tuple[Tensor, ...]
Inputs = Float[Tensor, "batch length inputs"]  # a layer inside a stack of cells is not as wide as the stream
Kernel = Callable[[Tensor, Tensor | None, States, Sequence[Tensor]], tuple[Tensor, States]]


@dataclass(frozen=True)
class RNNInput:
    """Input of an RNN: rows, their documents and real lengths, and the initial states."""

    x: Inputs
    documents: Int[Tensor, "batch length"] | None  # None: one document a row
    new: Int[Tensor, " batch"] | None  # real tokens of each row; None: all
    start: States


# --- kernels ----------------------------------------------------------------------------------------------------------
# With batch_sizes, x is a packed sequence as in torch: the first tokens of all sequences, then the second ones, and so
# on; batch_sizes counts the sequences at each step, and start holds them from the longest to the shortest.


def _torch_cell(
    run: Callable[..., States], x: Tensor, batch_sizes: Tensor | None, start: States, weights: Sequence[Tensor]
) -> tuple[Tensor, States]:
    """Run one of torch's own RNNs."""
    initial, keep = [s[None].contiguous() for s in start], torch.is_grad_enabled()  # as cuDNN requires
    vectors = initial if len(initial) > 1 else initial[0]
    if batch_sizes is None:
        y, *last = run(x, vectors, list(weights), True, 1, 0.0, keep, False, True)
    else:
        y, *last = run(x, batch_sizes, vectors, list(weights), True, 1, 0.0, keep, False)
    return y, tuple(v[0] for v in last)


def mogrify(y: Tensor, x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return y * 2 sigmoid(matrix · x), given half the matrix or its factors."""
    for matrix in matrices:
        x = F.linear(x, matrix)
    return torch.addcmul(y, y, x.tanh())


def _mogrifier_step(x: Tensor, state: States, weights: Sequence[Tensor], factors: int) -> States:
    """Return the states after one mogrifier step: rounds of gating, then an LSTM step."""
    hidden, cell = state
    for number in range((len(weights) - 4) // factors):
        matrices = weights[4 + number * factors : 4 + (number + 1) * factors]
        if number % 2:
            hidden = mogrify(hidden, x, matrices)
        else:
            x = mogrify(x, hidden, matrices)
    return torch.lstm_cell(x, (hidden, cell), *weights[:4])


def _mogrifier(
    x: Tensor, batch_sizes: Tensor | None, start: States, weights: Sequence[Tensor], factors: int
) -> tuple[Tensor, States]:
    """Run a mogrifier LSTM in a loop over time, since its rounds need the last state."""
    state = start
    outputs, finished = [], []  # sequences are sorted from the longest to the shortest: the last ones end first
    for now in x.unbind(1) if batch_sizes is None else x.split(batch_sizes.tolist()):
        if len(now) < len(state[0]):
            finished.append(tuple(v[len(now) :] for v in state))
            state = tuple(v[: len(now)] for v in state)
        state = _mogrifier_step(now, state, weights, factors)
        outputs.append(state[0])
    y = torch.stack(outputs, 1) if batch_sizes is None else torch.cat(outputs)
    hidden, cell = (torch.cat(parts) for parts in zip(state, *reversed(finished), strict=True))
    return y, (hidden, cell)


KERNELS: Mapping[str, Kernel] = {
    "rnn": partial(_torch_cell, torch.rnn_tanh),
    "gru": partial(_torch_cell, torch.gru),
    "lstm": partial(_torch_cell, torch.lstm),
    "mogrifier": partial(_mogrifier, factors=1),
    "mogrifier_factors": partial(_mogrifier, factors=2),
}
CUDNN = {"rnn": 1, "lstm": 2, "gru": 3}  # its mode numbers


# --- packed sequences -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedSequences:
    """Packed sequences: rows cut into one sequence per document, or one per row without its padding."""

    count: int
    order: Int[Tensor, " tokens"]  # real tokens of the flattened batch, step by step
    batch_sizes: Int[Tensor, " longest"]  # sequences that reach each step; on the CPU
    first: Int[Tensor, " batch"]  # the first sequence of each row, counted from the longest
    last: Int[Tensor, " batch"]


def pack_sequences(inputs: RNNInput) -> PackedSequences | None:
    """Cut rows at document boundaries and at the end of their real tokens; None: no cuts."""
    if inputs.documents is None and inputs.new is None:
        return None
    batch, length, _ = inputs.x.shape
    steps = torch.arange(length, device=inputs.x.device).expand(batch, length)
    real = torch.ones_like(steps, dtype=torch.bool) if inputs.new is None else steps < inputs.new.clamp(min=1)[:, None]
    starts = steps == 0
    if inputs.documents is not None:
        starts[:, 1:] |= (inputs.documents[:, 1:] != inputs.documents[:, :-1]) & real[:, 1:]
    number = starts.flatten().cumsum(0).view(batch, length) - 1
    offset = steps - torch.where(starts, steps, 0).cummax(dim=1).values
    tokens = real.flatten().nonzero()[:, 0]
    sequence, offset = number.flatten()[tokens], offset.flatten()[tokens]
    lengths = torch.bincount(sequence)
    rank = lengths.argsort(descending=True, stable=True).argsort()
    order = tokens[(offset * len(lengths) + rank[sequence]).argsort()]
    return PackedSequences(len(lengths), order, torch.bincount(offset).cpu(), rank[number[:, 0]], rank[number[:, -1]])


def _run_packed(kernel: Kernel, inputs: RNNInput, weights: Sequence[Tensor]) -> tuple[Tensor, States]:
    """Run a kernel on all sequences of all rows in parallel."""
    x, packed = inputs.x, pack_sequences(inputs)
    if packed is None:
        return kernel(x, None, inputs.start, weights)
    initial = tuple(_scatter_rows(s, packed.first, packed.count) for s in inputs.start)
    outputs, last = kernel(x.flatten(0, 1)[packed.order], packed.batch_sizes, initial, weights)
    y = _scatter_rows(outputs, packed.order, x.shape[0] * x.shape[1])
    return y.unflatten(0, x.shape[:2]), tuple(v[packed.last] for v in last)


def _scatter_rows(x: Tensor, positions: Tensor, count: int) -> Tensor:
    """Return `count` rows: x at some positions, zeros at the others."""
    return x.new_zeros(count, x.shape[1]).index_copy(0, positions, x)


def run_rnn(kernel: str, inputs: RNNInput, weights: Sequence[Tensor]) -> tuple[Tensor, States]:
    """Run the kernel of this name over time; return every step's output and the last states."""
    if not torch.compiler.is_compiling():
        return _run_packed(KERNELS[kernel], inputs, weights)
    arguments = (kernel, inputs.x, inputs.documents, inputs.new, torch.stack(inputs.start))
    if torch.is_grad_enabled():
        y, last = _RNNFunction.apply(*arguments, *weights)
    else:
        y, last, _ = torch.ops.heddle.run_rnn(*arguments, list(weights), False)
    return y, last.unbind(0)


# --- the operator -----------------------------------------------------------------------------------------------------

OPERATORS = torch.library.Library("heddle", "FRAGMENT")
ARGUMENTS = "str kernel, Tensor x, Tensor? documents, Tensor? new, Tensor start, Tensor[] weights"
OPERATORS.define(f"run_rnn({ARGUMENTS}, bool keep) -> (Tensor, Tensor, Tensor)")
OPERATORS.define(f"rnn_backward({ARGUMENTS}, Tensor y, Tensor reserved, Tensor grad_y, Tensor grad_last) -> Tensor[]")


class _RNNFunction(torch.autograd.Function):
    """The forward and the backward operator, joined for autograd."""

    @staticmethod
    def forward(
        ctx: Any, kernel: str, x: Tensor, documents: Tensor | None, new: Tensor | None, start: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        y, last, reserved = torch.ops.heddle.run_rnn(kernel, x, documents, new, start, list(weights), True)
        ctx.kernel = kernel
        ctx.save_for_backward(x, documents, new, start, y, reserved, *weights)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        x, documents, new, start, y, reserved, *weights = ctx.saved_tensors
        arguments = (ctx.kernel, x, documents, new, start, weights)
        grad_x, grad_start, *grad_weights = torch.ops.heddle.rnn_backward(*arguments, y, reserved, grad_y, grad_last)
        return None, grad_x, None, None, grad_start, *grad_weights


def _has_cudnn(kernel: str, x: Tensor) -> bool:
    return kernel in CUDNN and torch.cudnn_is_acceptable(x)


def _forward(  # noqa: PLR0913 - the schema of an operator has no dataclasses
    kernel: str,
    x: Tensor,
    documents: Tensor | None,
    new: Tensor | None,
    start: Tensor,
    weights: list[Tensor],
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, last states and cuDNN's reserve for the backward pass."""
    inputs, reserved = RNNInput(x, documents, new, start.unbind(0)), [x.new_empty(0, dtype=torch.uint8)]
    run = KERNELS[kernel]
    if keep and _has_cudnn(kernel, x):
        run = partial(_cudnn_forward, CUDNN[kernel], reserved)
    y, last = _run_packed(run, inputs, weights)
    return y.contiguous(), torch.stack(last), reserved[-1]


def _backward(  # noqa: PLR0913
    kernel: str,
    x: Tensor,
    documents: Tensor | None,
    new: Tensor | None,
    start: Tensor,
    weights: list[Tensor],
    y: Tensor,
    reserved: Tensor,
    grad_y: Tensor,
    grad_last: Tensor,
) -> list[Tensor]:
    """Return the gradients of inputs, initial states and weights."""
    inputs = RNNInput(x, documents, new, start.unbind(0))
    if _has_cudnn(kernel, x):
        return _cudnn_backward(CUDNN[kernel], inputs, weights, (y, reserved), (grad_y, grad_last))
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, start, *weights)]
        again = RNNInput(leaves[0], documents, new, leaves[1].unbind(0))
        outputs, last = _run_packed(KERNELS[kernel], again, leaves[2:])
        found = torch.autograd.grad((outputs, *last), leaves, (grad_y, *grad_last.unbind(0)), allow_unused=True)
    return [torch.zeros_like(t) if g is None else g.contiguous() for t, g in zip(leaves, found, strict=True)]


@dataclass(frozen=True)
class _CudnnCall:
    """Arguments that cuDNN's forward and backward pass share."""

    x: Tensor
    weights: list[Tensor]  # four views of flat_weights
    flat_weights: Tensor  # contiguous, as cuDNN requires
    initial: tuple[Tensor, Tensor | None]
    options: tuple[Any, ...]

    @classmethod
    def of(
        cls, mode: int, x: Tensor, batch_sizes: Tensor | None, start: States, weights: Sequence[Tensor]
    ) -> "_CudnnCall":
        hidden, by_rows = start[0].shape[-1], batch_sizes is None
        views = [w.detach() for w in weights]  # their memory is about to be moved
        flat = torch.ops.aten._cudnn_rnn_flatten_weight(views, 4, x.shape[-1], mode, hidden, 0, 1, by_rows, False)
        initial = [s[None].contiguous() for s in start]
        lengths = [] if batch_sizes is None else batch_sizes.tolist()
        options = (mode, hidden, 0, 1, by_rows, 0.0, True, False, lengths, None)
        return cls(x.contiguous(), views, flat, (initial[0], initial[1] if len(initial) > 1 else None), options)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.x, self.weights, 4, self.flat_weights, *self.initial


def _cudnn_forward(
    mode: int, reserved: list[Tensor], x: Tensor, batch_sizes: Tensor | None, start: States, weights: Sequence[Tensor]
) -> tuple[Tensor, States]:
    """Run cuDNN's RNN and save its reserve for the backward pass."""
    call = _CudnnCall.of(mode, x, batch_sizes, start, weights)
    y, *last, reserve, _ = torch.ops.aten._cudnn_rnn(*call.arguments, *call.options)
    reserved.append(reserve)
    return y, tuple(v[0] for v in last[: len(start)])


def _cudnn_backward(
    mode: int,
    inputs: RNNInput,
    weights: list[Tensor],
    saved: tuple[Tensor, Tensor],
    output_grads: tuple[Tensor, Tensor],
) -> list[Tensor]:
    """Run cuDNN's backward pass on the sequences of the forward pass."""
    (y, reserved), (grad_y, grad_last), x, packed = saved, output_grads, inputs.x, pack_sequences(inputs)
    start, ends, batch_sizes = inputs.start, grad_last.unbind(0), None
    if packed is not None:
        x, y, grad_y = (t.flatten(0, 1)[packed.order] for t in (x, y, grad_y))
        start = tuple(_scatter_rows(s, packed.first, packed.count) for s in start)
        ends, batch_sizes = tuple(_scatter_rows(e, packed.last, packed.count) for e in ends), packed.batch_sizes
    else:
        y = y.transpose(0, 1).contiguous().transpose(0, 1)  # cuDNN expects the layout that it wrote, step by step
    call = _CudnnCall.of(mode, x, batch_sizes, start, weights)
    grad_ends = [e[None].contiguous() for e in ends]
    grads = (y, grad_y.contiguous(), grad_ends[0], grad_ends[1] if len(ends) > 1 else None)
    output_mask = [True, True, len(ends) > 1, True]
    # cuDNN overwrites the reserve, and a graph may run backward twice
    grad_x, *grad_start, grad_weights = torch.ops.aten._cudnn_rnn_backward(
        *call.arguments, *grads, *call.options, reserved.clone(), output_mask
    )
    grad_states = [s[0] for s in grad_start[: len(start)]]
    if packed is not None:
        grad_x = _scatter_rows(grad_x, packed.order, inputs.x.shape[0] * inputs.x.shape[1]).view_as(inputs.x)
        grad_states = [s[packed.first] for s in grad_states]
    grad_weights = [g.reshape(w.shape).contiguous() for g, w in zip(grad_weights, weights, strict=True)]
    return [grad_x.contiguous(), torch.stack(grad_states), *grad_weights]


def _fake_forward(kernel: str, x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors of the shapes of the forward pass; only cuDNN knows the size of its reserve."""
    _documents, _new, start, _weights, keep = arguments
    reserved = torch.library.get_ctx().new_dynamic_size() if keep and x.is_cuda else 0
    y = x.new_empty(*x.shape[:2], start.shape[-1])
    return y, torch.empty_like(start), x.new_empty(reserved, dtype=torch.uint8)


def _fake_backward(kernel: str, x: Tensor, *arguments: Any) -> list[Tensor]:
    _documents, _new, start, weights, *_ = arguments
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, start, *weights)]


OPERATORS.impl("run_rnn", _forward, "CompositeExplicitAutograd")
OPERATORS.impl("rnn_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("heddle::run_rnn", _fake_forward, lib=OPERATORS)
torch.library.register_fake("heddle::rnn_backward", _fake_backward, lib=OPERATORS)
