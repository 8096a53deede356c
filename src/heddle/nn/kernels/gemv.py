"""GEMV in Triton: the product of a matrix with one vector or two, at the speed of reading the matrix.

Each program holds some rows of the matrix in registers. It loads them before it waits for the kernel that computes the
vectors (programmatic dependent launch, PDL), so that memory is not idle between two products. It lets the next kernel
start only after it has waited itself: compiled kernels rely on all but the previous kernel being done. Needs CUDA;
`dispatch.py` imports it.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from torch import Tensor

from heddle.nn.kernels.dispatch import supports_pdl

BLOCK_ELEMENTS = 8192  # numbers of the matrix that a program holds at a time
STEP = 1024  # of each row, where rows are too long or not a power of two


@triton.jit
def _gemv(
    vectors, matrix, out, outputs, inputs, stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, VECTORS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply some rows of the matrix by every vector."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    at = matrix + row.to(tl.int64)[:, None] * stride + column[None, :]
    inside = row[:, None] < outputs
    if WHOLE:
        held = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
        if EARLY:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        held = held.to(tl.float32)  # not earlier: it would wait for the matrix first
        for one in tl.static_range(VECTORS):
            x = tl.load(vectors + one * inputs + column).to(tl.float32)
            sums = tl.sum(held * x[None, :], 1)
            tl.store(out + one * outputs + row, sums.to(out.dtype.element_ty), mask=row < outputs)
    else:
        if EARLY:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        for one in tl.static_range(VECTORS):  # for the second vector the matrix comes from the cache
            partial = tl.zeros([ROWS, BLOCK], tl.float32)
            for start in range(0, inputs, BLOCK):
                left = start + column < inputs
                x = tl.load(vectors + one * inputs + start + column, mask=left, other=0.0).to(tl.float32)
                partial += tl.load(at + start, mask=inside & left[None, :], other=0.0).to(tl.float32) * x[None, :]
            sums = tl.sum(partial, 1)
            tl.store(out + one * outputs + row, sums.to(out.dtype.element_ty), mask=row < outputs)


def pdl_options(x: Tensor) -> dict[str, bool]:
    """Return the launch options for programmatic dependent launch, where the device has it."""
    return {"EARLY": True, "launch_pdl": True} if supports_pdl(x.device) else {"EARLY": False}


@torch.library.custom_op("heddle::gemv", mutates_args=())
def gemv_linear(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Return the products of a matrix, [outputs, inputs], with vectors, [..., inputs], of which there are few.

    The matrix must lie still: a weight, not what another kernel is just making. Of whole numbers, which are still to be
    scaled, the products are in float32.
    """
    outputs, inputs = matrix.shape
    out = allocate_output(vectors, matrix)
    whole = inputs & (inputs - 1) == 0 and 256 <= inputs <= BLOCK_ELEMENTS
    block = inputs if whole else STEP
    rows = BLOCK_ELEMENTS // block
    with torch.cuda.device_of(vectors):
        _gemv[(triton.cdiv(outputs, rows),)](
            vectors.contiguous(), matrix, out, outputs, inputs, matrix.stride(0),
            ROWS=rows, BLOCK=block, WHOLE=whole, VECTORS=vectors.numel() // inputs, num_warps=4, **pdl_options(vectors),
        )  # fmt: skip
    return out


@gemv_linear.register_fake
def _shape(vectors: Tensor, matrix: Tensor) -> Tensor:
    return allocate_output(vectors, matrix)


def allocate_output(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Allocate the output."""
    dtype = vectors.dtype if matrix.dtype.is_floating_point else torch.float32
    return vectors.new_empty(*vectors.shape[:-1], len(matrix), dtype=dtype)
