"""Grouped GEMM: rows sorted by group, each group times its own matrix, without a GPU synchronization."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from heddle.core.system import BATCH_INVARIANCE, BLOCK

TokenRows = Float[Tensor, "rows width"]
Index = Int[Tensor, " rows"]


@dataclass(frozen=True)
class Groups:
    """Rows sorted by group; rows of no group come last."""

    group_ids: Index  # each row's group
    offsets: Int[Tensor, " groups"]  # where each group's rows end; int32, as the kernels require

    def zero_ungrouped(self, rows: TokenRows) -> TokenRows:
        """Return the rows, with zeros for those of no group, which the kernels leave uninitialized."""
        return rows.where((self.group_ids < len(self.offsets))[:, None], 0)


def sort_by_group(group_ids: Index, count: int) -> tuple[Groups, Index, Index]:
    """Return the groups, the permutation that sorts rows by group, and its inverse.

    An id past the last group means no group.
    """
    order = group_ids.argsort(stable=True)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    ranked = group_ids[order]
    all_groups = torch.arange(count, device=order.device, dtype=ranked.dtype)
    return Groups(ranked, torch.searchsorted(ranked, all_groups, right=True, out_int32=True)), order, inverse


def permute(
    rows: TokenRows, index: Int[Tensor, " moved"], inverse: Int[Tensor, " moved"], copies: int
) -> Float[Tensor, "moved width"]:
    """Return rows[index], which takes each row `copies` times; `inverse` finds the copies again, side by side."""
    return Permute.apply(rows, index, inverse, copies)  # type: ignore[no-any-return]


class Permute(torch.autograd.Function):
    """A gather whose gradient is a gather too, so that it is deterministic: no atomic additions."""

    @staticmethod
    def forward(rows: Tensor, index: Tensor, inverse: Tensor, copies: int) -> Tensor:
        return rows[index]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, inverse, ctx.copies = inputs
        ctx.save_for_backward(inverse)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        found = gradients[0][inverse]
        return (found if ctx.copies == 1 else found.unflatten(0, (-1, ctx.copies)).sum(1)), None, None, None


def grouped_gemm(
    rows: Float[Tensor, "rows inputs"], weight: Float[Tensor, "groups outputs inputs"], offsets: Int[Tensor, " groups"]
) -> Float[Tensor, "rows outputs"]:
    """Multiply each group's rows by its transposed matrix; rows of no group are undefined.

    In bfloat16 one kernel reads the offsets on the device; otherwise there is one product for each group.
    """
    if not torch.compiler.is_compiling() and BATCH_INVARIANCE.get() is not None:
        return grouped_gemm_in_blocks(rows, weight, offsets)
    if rows.dtype == torch.bfloat16 and weight.shape[1] % 8 == weight.shape[2] % 8 == 0:  # multiples of 16 bytes
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=offsets)
    return grouped_gemm_loop(rows, weight, offsets)  # type: ignore[no-any-return]


def grouped_gemm_in_blocks(
    rows: Float[Tensor, "rows inputs"], weight: Float[Tensor, "groups outputs inputs"], offsets: Int[Tensor, " groups"]
) -> Float[Tensor, "rows outputs"]:
    """Multiply each group in blocks of a fixed number of rows, the last one padded: batch-invariant."""
    y = rows.new_zeros(len(rows), weight.shape[1])
    for (start, stop), matrix in zip(_spans(offsets), weight, strict=True):
        for first in range(start, stop, BLOCK):
            block = rows[first : min(first + BLOCK, stop)]
            padded = F.pad(block, (0, 0, 0, BLOCK - len(block)))
            y[first : first + len(block)] = (padded.clone() @ matrix.T)[: len(block)]
    return y


# --- one product for each group: a custom op, since a compiler does not know the sizes of groups ----------------------


@torch.library.custom_op("heddle::grouped_gemm_loop", mutates_args=())
def grouped_gemm_loop(rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """Multiply group by group, in a loop."""
    y = rows.new_zeros(len(rows), weight.shape[1])
    for (start, stop), matrix in zip(_spans(offsets), weight, strict=True):
        torch.mm(rows[start:stop], matrix.T, out=y[start:stop])
    return y


@torch.library.custom_op("heddle::grouped_gemm_loop_weight", mutates_args=())
def grouped_gemm_loop_weight(gradient: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    """Return the gradient of each group's matrix."""
    spans = _spans(offsets)
    found = rows.new_zeros(len(spans), gradient.shape[1], rows.shape[1])
    for (start, stop), matrix in zip(spans, found, strict=True):
        torch.mm(gradient[start:stop].T, rows[start:stop], out=matrix)
    return found


def _spans(offsets: Tensor) -> list[tuple[int, int]]:
    stops = offsets.tolist()
    return list(zip([0, *stops], stops, strict=False))


@grouped_gemm_loop.register_fake
def _(rows: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    return rows.new_empty(len(rows), weight.shape[1])


@grouped_gemm_loop_weight.register_fake
def _(gradient: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    return rows.new_empty(len(offsets), gradient.shape[1], rows.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
    rows, weight, offsets = ctx.saved_tensors
    inverse = grouped_gemm_loop(gradient, weight.transpose(1, 2), offsets)
    return inverse, grouped_gemm_loop_weight(gradient, rows, offsets) if ctx.needs_input_grad[1] else None, None


grouped_gemm_loop.register_autograd(_gradients, setup_context=_save)
