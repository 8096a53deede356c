"""Over time: cells run along rows, in plain code or, inside a compiled graph, as one operator that is not unrolled.

A compiler would turn torch's recurrences into thousands of small products, and cut its graph where rows hold documents,
whose number it cannot know. As an operator the run is a single node with a gradient of its own. On a GPU that gradient
is cuDNN's, from what cuDNN kept; elsewhere, and for cells that cuDNN lacks, the run is repeated when it is asked for.
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

Vectors = tuple[Tensor, ...]
Inputs = Float[Tensor, "batch length inputs"]  # a layer inside a stack of cells is not as wide as the stream
Kernel = Callable[[Tensor, Tensor | None, Vectors, Sequence[Tensor]], tuple[Tensor, Vectors]]


@dataclass(frozen=True)
class Rows:
    """What a cell runs along: rows, where they are cut, and the vectors that each begins with."""

    x: Inputs
    documents: Int[Tensor, "batch length"] | None  # None: a row is one piece
    new: Int[Tensor, " batch"] | None  # how many of a row's tokens are real; None: all
    start: Vectors


# --- kernels ----------------------------------------------------------------------------------------------------------
# With sizes, x is tokens of many pieces, all first ones first: sizes says how many pieces have a first token, a second,
# and so on, and start holds the pieces from the longest to the shortest.


def _torch_cell(
    run: Callable[..., Vectors], x: Tensor, sizes: Tensor | None, start: Vectors, weights: Sequence[Tensor]
) -> tuple[Tensor, Vectors]:
    """Run one of torch's own cells."""
    begin, keep = [s[None].contiguous() for s in start], torch.is_grad_enabled()  # as cuDNN wants it
    vectors = begin if len(begin) > 1 else begin[0]
    if sizes is None:
        y, *last = run(x, vectors, list(weights), True, 1, 0.0, keep, False, True)
    else:
        y, *last = run(x, sizes, vectors, list(weights), True, 1, 0.0, keep, False)
    return y, tuple(v[0] for v in last)


def gated(y: Tensor, x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return y * 2 sigmoid(matrix · x), given half the matrix or its factors."""
    for matrix in matrices:
        x = F.linear(x, matrix)
    return torch.addcmul(y, y, x.tanh())


def _mogrify(x: Tensor, carried: Vectors, weights: Sequence[Tensor], factors: int) -> Vectors:
    """Take one step of a mogrifier: rounds of gating, then an LSTM's step."""
    hidden, cell = carried
    for number in range((len(weights) - 4) // factors):
        matrices = weights[4 + number * factors : 4 + (number + 1) * factors]
        if number % 2:
            hidden = gated(hidden, x, matrices)
        else:
            x = gated(x, hidden, matrices)
    return torch.lstm_cell(x, (hidden, cell), *weights[:4])


def _mogrifier(
    x: Tensor, sizes: Tensor | None, start: Vectors, weights: Sequence[Tensor], factors: int
) -> tuple[Tensor, Vectors]:
    """Run a mogrifier, whose rounds need the last state, so that time is a loop."""
    carried = start
    outputs, ended = [], []  # pieces lie from the longest to the shortest: the last ones end first
    for now in x.unbind(1) if sizes is None else x.split(sizes.tolist()):
        if len(now) < len(carried[0]):
            ended.append(tuple(v[len(now) :] for v in carried))
            carried = tuple(v[: len(now)] for v in carried)
        carried = _mogrify(now, carried, weights, factors)
        outputs.append(carried[0])
    y = torch.stack(outputs, 1) if sizes is None else torch.cat(outputs)
    hidden, cell = (torch.cat(pieces) for pieces in zip(carried, *reversed(ended), strict=True))
    return y, (hidden, cell)


KERNELS: Mapping[str, Kernel] = {
    "rnn": partial(_torch_cell, torch.rnn_tanh),
    "gru": partial(_torch_cell, torch.gru),
    "lstm": partial(_torch_cell, torch.lstm),
    "mogrifier": partial(_mogrifier, factors=1),
    "mogrifier_factors": partial(_mogrifier, factors=2),
}
CUDNN = {"rnn": 1, "lstm": 2, "gru": 3}  # its numbers for the cells that it has


# --- rows as pieces ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pieces:
    """Rows cut into stretches that are run apart: one per document, or one per row without its padding."""

    count: int
    order: Int[Tensor, " tokens"]  # real tokens of the flattened batch as the kernels want them: all first ones first
    sizes: Int[Tensor, " longest"]  # how many pieces have a first token, a second, ...; on the CPU
    first: Int[Tensor, " batch"]  # the first piece of each row, pieces counted from the longest
    last: Int[Tensor, " batch"]


def pieces_of(rows: Rows) -> Pieces | None:
    """Cut rows at document boundaries, or at the end of their real tokens; None: nowhere."""
    if rows.documents is None and rows.new is None:
        return None
    batch, length, _ = rows.x.shape
    steps = torch.arange(length, device=rows.x.device).expand(batch, length)
    real = torch.ones_like(steps, dtype=torch.bool) if rows.new is None else steps < rows.new.clamp(min=1)[:, None]
    begins = steps == 0
    if rows.documents is not None:
        begins[:, 1:] |= (rows.documents[:, 1:] != rows.documents[:, :-1]) & real[:, 1:]
    number = begins.flatten().cumsum(0).view(batch, length) - 1
    offset = steps - torch.where(begins, steps, 0).cummax(dim=1).values
    tokens = real.flatten().nonzero()[:, 0]
    piece, offset = number.flatten()[tokens], offset.flatten()[tokens]
    lengths = torch.bincount(piece)
    rank = lengths.argsort(descending=True, stable=True).argsort()
    order = tokens[(offset * len(lengths) + rank[piece]).argsort()]
    return Pieces(len(lengths), order, torch.bincount(offset).cpu(), rank[number[:, 0]], rank[number[:, -1]])


def _along(kernel: Kernel, rows: Rows, weights: Sequence[Tensor]) -> tuple[Tensor, Vectors]:
    """Run a kernel along rows, each piece of each row as a sequence of its own, side by side."""
    x, pieces = rows.x, pieces_of(rows)
    if pieces is None:
        return kernel(x, None, rows.start, weights)
    begin = tuple(_laid(s, pieces.first, pieces.count) for s in rows.start)
    outputs, last = kernel(x.flatten(0, 1)[pieces.order], pieces.sizes, begin, weights)
    y = _laid(outputs, pieces.order, x.shape[0] * x.shape[1])
    return y.unflatten(0, x.shape[:2]), tuple(v[pieces.last] for v in last)


def _laid(x: Tensor, places: Tensor, count: int) -> Tensor:
    """Lay rows at some of so many places; the others are zero."""
    return x.new_zeros(count, x.shape[1]).index_copy(0, places, x)


def run_rnn(kernel: str, rows: Rows, weights: Sequence[Tensor]) -> tuple[Tensor, Vectors]:
    """Run along rows by the kernel of this name; return every step's output and the last vectors."""
    if not torch.compiler.is_compiling():
        return _along(KERNELS[kernel], rows, weights)
    given = (kernel, rows.x, rows.documents, rows.new, torch.stack(rows.start))
    if torch.is_grad_enabled():
        y, last = _Sealed.apply(*given, *weights)
    else:
        y, last, _ = torch.ops.heddle.run_rnn(*given, list(weights), False)
    return y, last.unbind(0)


# --- the operator -----------------------------------------------------------------------------------------------------

OPERATORS = torch.library.Library("heddle", "FRAGMENT")
GIVEN = "str kernel, Tensor x, Tensor? documents, Tensor? new, Tensor start, Tensor[] weights"
OPERATORS.define(f"run_rnn({GIVEN}, bool keep) -> (Tensor, Tensor, Tensor)")
OPERATORS.define(f"back_in_time({GIVEN}, Tensor y, Tensor kept, Tensor by_y, Tensor by_last) -> Tensor[]")


class _Sealed(torch.autograd.Function):
    """The run with its gradient, as two operators."""

    @staticmethod
    def forward(
        ctx: Any, kernel: str, x: Tensor, documents: Tensor | None, new: Tensor | None, start: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        y, last, kept = torch.ops.heddle.run_rnn(kernel, x, documents, new, start, list(weights), True)
        ctx.kernel = kernel
        ctx.save_for_backward(x, documents, new, start, y, kept, *weights)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_y: Tensor, by_last: Tensor) -> tuple[Tensor | None, ...]:
        x, documents, new, start, y, kept, *weights = ctx.saved_tensors
        given = (ctx.kernel, x, documents, new, start, weights)
        by_x, by_start, *by_weights = torch.ops.heddle.back_in_time(*given, y, kept, by_y, by_last)
        return None, by_x, None, None, by_start, *by_weights


def _has_cudnn(kernel: str, x: Tensor) -> bool:
    return kernel in CUDNN and torch.cudnn_is_acceptable(x)


def _run(  # noqa: PLR0913 - an operator's schema has no records
    kernel: str,
    x: Tensor,
    documents: Tensor | None,
    new: Tensor | None,
    start: Tensor,
    weights: list[Tensor],
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, last vectors and what the way back wants beside them."""
    rows, kept = Rows(x, documents, new, start.unbind(0)), [x.new_empty(0, dtype=torch.uint8)]
    run = KERNELS[kernel]
    if keep and _has_cudnn(kernel, x):
        run = partial(_cudnn, CUDNN[kernel], kept)
    y, last = _along(run, rows, weights)
    return y.contiguous(), torch.stack(last), kept[-1]


def _run_back(  # noqa: PLR0913
    kernel: str,
    x: Tensor,
    documents: Tensor | None,
    new: Tensor | None,
    start: Tensor,
    weights: list[Tensor],
    y: Tensor,
    kept: Tensor,
    by_y: Tensor,
    by_last: Tensor,
) -> list[Tensor]:
    """Return the gradients of inputs, first vectors and weights."""
    rows = Rows(x, documents, new, start.unbind(0))
    if _has_cudnn(kernel, x):
        return _cudnn_back(CUDNN[kernel], rows, weights, (y, kept), (by_y, by_last))
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, start, *weights)]
        again = Rows(leaves[0], documents, new, leaves[1].unbind(0))
        outputs, last = _along(KERNELS[kernel], again, leaves[2:])
        found = torch.autograd.grad((outputs, *last), leaves, (by_y, *by_last.unbind(0)), allow_unused=True)
    return [torch.zeros_like(t) if g is None else g.contiguous() for t, g in zip(leaves, found, strict=True)]


@dataclass(frozen=True)
class _Call:
    """The arguments that cuDNN's two ways share, from where a run begins."""

    x: Tensor
    weights: list[Tensor]  # four views of the next
    beside: Tensor  # in one piece of memory, as cuDNN wants them
    begin: tuple[Tensor, Tensor | None]
    how: tuple[Any, ...]

    @classmethod
    def of(cls, mode: int, x: Tensor, sizes: Tensor | None, start: Vectors, weights: Sequence[Tensor]) -> "_Call":
        hidden, by_rows = start[0].shape[-1], sizes is None
        views = [w.detach() for w in weights]  # they are about to be moved
        beside = torch.ops.aten._cudnn_rnn_flatten_weight(views, 4, x.shape[-1], mode, hidden, 0, 1, by_rows, False)
        begin = [s[None].contiguous() for s in start]
        lengths = [] if sizes is None else sizes.tolist()
        how = (mode, hidden, 0, 1, by_rows, 0.0, True, False, lengths, None)
        return cls(x.contiguous(), views, beside, (begin[0], begin[1] if len(begin) > 1 else None), how)

    @property
    def given(self) -> tuple[Any, ...]:
        return self.x, self.weights, 4, self.beside, *self.begin


def _cudnn(
    mode: int, kept: list[Tensor], x: Tensor, sizes: Tensor | None, start: Vectors, weights: Sequence[Tensor]
) -> tuple[Tensor, Vectors]:
    """Run cuDNN's cell, and keep what its way back wants."""
    call = _Call.of(mode, x, sizes, start, weights)
    y, *last, reserve, _ = torch.ops.aten._cudnn_rnn(*call.given, *call.how)
    kept.append(reserve)
    return y, tuple(v[0] for v in last[: len(start)])


def _cudnn_back(
    mode: int, rows: Rows, weights: list[Tensor], made: tuple[Tensor, Tensor], by: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """Go cuDNN's way back, along the pieces of the way there."""
    (y, kept), (by_y, by_last), x, pieces = made, by, rows.x, pieces_of(rows)
    start, ends, sizes = rows.start, by_last.unbind(0), None
    if pieces is not None:
        x, y, by_y = (t.flatten(0, 1)[pieces.order] for t in (x, y, by_y))
        start = tuple(_laid(s, pieces.first, pieces.count) for s in start)
        ends, sizes = tuple(_laid(e, pieces.last, pieces.count) for e in ends), pieces.sizes
    else:
        y = y.transpose(0, 1).contiguous().transpose(0, 1)  # cuDNN reads it as it wrote it, step by step
    call = _Call.of(mode, x, sizes, start, weights)
    by_ends = [e[None].contiguous() for e in ends]
    grads = (y, by_y.contiguous(), by_ends[0], by_ends[1] if len(ends) > 1 else None)
    wanted = [True, True, len(ends) > 1, True]
    # the reserve is written to, and a graph may be gone back twice
    by_x, *by_start, by_weights = torch.ops.aten._cudnn_rnn_backward(
        *call.given, *grads, *call.how, kept.clone(), wanted
    )
    began = [s[0] for s in by_start[: len(start)]]
    if pieces is not None:
        by_x = _laid(by_x, pieces.order, rows.x.shape[0] * rows.x.shape[1]).view_as(rows.x)
        began = [s[pieces.first] for s in began]
    by_weights = [g.reshape(w.shape).contiguous() for g, w in zip(by_weights, weights, strict=True)]
    return [by_x.contiguous(), torch.stack(began), *by_weights]


def _shapes(  # noqa: PLR0913
    kernel: str,
    x: Tensor,
    documents: Tensor | None,
    new: Tensor | None,
    start: Tensor,
    weights: list[Tensor],
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a run would, without its numbers; how much cuDNN keeps only cuDNN knows."""
    kept = torch.library.get_ctx().new_dynamic_size() if keep and x.is_cuda else 0
    y = x.new_empty(*x.shape[:2], start.shape[-1])
    return y, torch.empty_like(start), x.new_empty(kept, dtype=torch.uint8)


def _shapes_back(kernel: str, x: Tensor, *given: Any) -> list[Tensor]:
    _documents, _new, start, weights, *_ = given
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, start, *weights)]


OPERATORS.impl("run_rnn", _run, "CompositeExplicitAutograd")
OPERATORS.impl("back_in_time", _run_back, "CompositeExplicitAutograd")
torch.library.register_fake("heddle::run_rnn", _shapes, lib=OPERATORS)
torch.library.register_fake("heddle::back_in_time", _shapes_back, lib=OPERATORS)
