"""Narrow: numbers into floats of eight bits, lying and standing, in one reading after the largest is known, in Triton.

Products of eight bits want each side in one order only, and every tensor of training takes part in two products, so
both orders are written while the numbers are at hand. Needs a CUDA device: `nn/kernels/dispatch.py` imports it
where one is.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # numbers that a program looks at together for the largest
PROGRAMS = 1056  # eight for each of an H200's processors
SIDE = 64  # rows and columns of the tile that a program narrows


@triton.jit
def _find(x, most, size, BLOCK: tl.constexpr):
    """Raise `most` to the largest number without its sign; what is no number counts as infinite, and is not lost."""
    best = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        wide = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
        best = tl.maximum(best, tl.where(wide == wide, tl.abs(wide), float("inf")))
    tl.atomic_max(most, tl.max(best, 0))


@triton.jit
def _narrow(x, most, lying, standing, factor, rows, columns, largest, least, SIDE: tl.constexpr):
    """Narrow one tile."""
    by = tl.maximum(tl.load(most), least) / largest
    row, column = tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    wide = tl.load(x + row.to(tl.int64)[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    small = tl.minimum(tl.maximum(wide / by, -largest), largest).to(lying.dtype.element_ty)
    tl.store(lying + row.to(tl.int64)[:, None] * columns + column[None, :], small, mask=inside)
    turned = (column[:, None] < columns) & (row[None, :] < rows)
    tl.store(standing + column.to(tl.int64)[:, None] * rows + row[None, :], tl.trans(small), mask=turned)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(factor, by)


@torch.library.custom_op("heddle::narrow", mutates_args=())
def narrow(x: Tensor, dtype: torch.dtype, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix in eight bits, the same with rows and columns changed, and what makes them the old numbers."""
    x, (rows, columns) = x.contiguous(), x.shape
    lying, standing = x.new_empty(rows, columns, dtype=dtype), x.new_empty(columns, rows, dtype=dtype)
    most, factor = x.new_zeros((), dtype=torch.float32), x.new_empty((), dtype=torch.float32)
    with torch.cuda.device_of(x):
        _find[(min(PROGRAMS, triton.cdiv(x.numel(), BLOCK)),)](x, most, x.numel(), BLOCK=BLOCK, num_warps=8)
        _narrow[(triton.cdiv(rows, SIDE), triton.cdiv(columns, SIDE))](
            x, most, lying, standing, factor, rows, columns, torch.finfo(dtype).max, least, SIDE=SIDE, num_warps=4
        )
    return lying, standing, factor


@narrow.register_fake
def _shapes(x: Tensor, dtype: torch.dtype, least: float) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = x.shape
    whole = x.new_empty(rows, columns, dtype=dtype), x.new_empty(columns, rows, dtype=dtype)
    return *whole, x.new_empty((), dtype=torch.float32)
