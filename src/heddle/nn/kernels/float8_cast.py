"""Float8 cast in Triton: a matrix and its transpose, scaled by the largest absolute value.

Float8 products need each operand in one memory order, and in training every tensor takes part in two products, so both
orders are written in one pass. Needs CUDA; `dispatch.py` imports it.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # numbers that a program reads at a time for the maximum
PROGRAMS = 1056  # eight for each multiprocessor of an H200
SIDE = 64  # rows and columns of the tile that a program casts


@triton.jit
def _absolute_maximum(x, maximum, size, BLOCK: tl.constexpr):
    """Raise `maximum` to the largest absolute value; NaN counts as infinite, so that it is not lost."""
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        upcast = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.where(upcast == upcast, tl.abs(upcast), float("inf")))
    tl.atomic_max(maximum, tl.max(largest, 0))


@triton.jit
def _cast(x, maximum, row_major, column_major, scale, rows, columns, largest, least, SIDE: tl.constexpr):
    """Cast one tile."""
    divisor = tl.maximum(tl.load(maximum), least) / largest
    row, column = tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    upcast = tl.load(x + row.to(tl.int64)[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    cast = tl.minimum(tl.maximum(upcast / divisor, -largest), largest).to(row_major.dtype.element_ty)
    tl.store(row_major + row.to(tl.int64)[:, None] * columns + column[None, :], cast, mask=inside)
    inside_transposed = (column[:, None] < columns) & (row[None, :] < rows)
    tl.store(column_major + column.to(tl.int64)[:, None] * rows + row[None, :], tl.trans(cast), mask=inside_transposed)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(scale, divisor)


@torch.library.custom_op("heddle::cast_to_float8", mutates_args=())
def cast_to_float8(x: Tensor, dtype: torch.dtype, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix in float8, its transpose, and the scale that restores the numbers."""
    x, (rows, columns) = x.contiguous(), x.shape
    row_major, column_major = x.new_empty(rows, columns, dtype=dtype), x.new_empty(columns, rows, dtype=dtype)
    maximum, scale = x.new_zeros((), dtype=torch.float32), x.new_empty((), dtype=torch.float32)
    with torch.cuda.device_of(x):
        programs = min(PROGRAMS, triton.cdiv(x.numel(), BLOCK))
        _absolute_maximum[(programs,)](x, maximum, x.numel(), BLOCK=BLOCK, num_warps=8)
        _cast[(triton.cdiv(rows, SIDE), triton.cdiv(columns, SIDE))](
            x,
            maximum,
            row_major,
            column_major,
            scale,
            rows,
            columns,
            torch.finfo(dtype).max,
            least,
            SIDE=SIDE,
            num_warps=4,
        )
    return row_major, column_major, scale


@cast_to_float8.register_fake
def _shapes(x: Tensor, dtype: torch.dtype, least: float) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = x.shape
    outputs = x.new_empty(rows, columns, dtype=dtype), x.new_empty(columns, rows, dtype=dtype)
    return *outputs, x.new_empty((), dtype=torch.float32)
