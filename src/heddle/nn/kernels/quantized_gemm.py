"""Quantized GEMM in Triton: products with int8 or int4 matrices, dequantized as they are read.

Int4 codes are packed in pairs: a byte holds one of a row's left half above one of its right half, so that both meet
adjacent inputs. For few vectors a program holds some rows, as in `gemv.py`; for more, tensor cores multiply blocks of
rows, and long rows are split among programs (split-K). Needs CUDA; `dispatch.py` imports it.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from torch import Tensor

from heddle.nn.kernels.dispatch import MAX_INT4_ROW_BYTES, MIN_BLOCK_BYTES
from heddle.nn.kernels.gemv import pdl_options

BLOCK_BYTES = 2 * MAX_INT4_ROW_BYTES  # bytes of the matrix that a program holds at a time
PROGRAMS = 256  # that keep a large GPU busy: about two for each multiprocessor
SPLITS = 8  # of a row, at most: their results are stored and summed
BLOCKS = (128, 64, MIN_BLOCK_BYTES)  # bytes of a row read at a time: the first that divides it
STAGES = 3  # blocks in flight
ROWS = 64  # of the matrix in a program: more are slower, though vectors are then read less often
UPPER = [f"bfe.u32 part, upper, {8 * byte}, 8; cvt.rn.f32.u32 ${byte}, part;" for byte in range(4)]
LOWER = [f"bfe.u32 part, lower, {8 * byte}, 8; cvt.rn.f32.u32 ${byte + 4}, part;" for byte in range(4)]
UNPACK = tl.constexpr(  # four bytes to eight floats: Triton's own code takes three more instructions for each
    " ".join((
        "{ .reg .b32 upper, lower, part;",
        "and.b32 lower, $8, 0x0F0F0F0F; shr.u32 upper, $8, 4; and.b32 upper, upper, 0x0F0F0F0F;",
        *UPPER, *LOWER, "}",
    ))
)  # fmt: skip


@triton.jit
def _unpack(codes):
    """Return the upper and lower four bits of bytes as floats."""
    return tl.inline_asm_elementwise(
        UNPACK, "=f,=f,=f,=f,=f,=f,=f,=f,r", [codes], dtype=(tl.float32, tl.float32), is_pure=True, pack=4
    )


@triton.jit
def _scale_and_zero(pair):
    """Return a group's scale, and the number of code 0; both are bfloat16 in one word."""
    scale = (pair << 16).to(tl.float32, bitcast=True)
    return scale, (pair & -65536).to(tl.float32, bitcast=True) - 8 * scale


@triton.jit
def _int4_gemv(
    vectors, codes, scales, out, outputs, half,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, VECTORS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Multiply some rows of an int4 matrix by every vector."""
    GROUPS: tl.constexpr = WIDTH // GROUP
    row, column, group = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, GROUPS)
    inside, groups = row < outputs, half // GROUP
    there = inside[:, None] & (column < half)[None, :]
    held = tl.load(codes + row.to(tl.int64)[:, None] * half + column[None, :], mask=there, other=0)
    at, there = scales + row.to(tl.int64)[:, None] * 2 * groups + group[None, :], inside[:, None] & (group < groups)
    left_pair, right_pair = tl.load(at, mask=there, other=0), tl.load(at + groups, mask=there, other=0)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    high, low = _unpack(held)  # not earlier: it would wait for the matrix first
    left, left_zero = _scale_and_zero(left_pair)
    right, right_zero = _scale_and_zero(right_pair)
    for one in tl.static_range(VECTORS):
        x = vectors + one * 2 * half + column
        first = tl.load(x, mask=column < half, other=0.0).to(tl.float32)
        second = tl.load(x + half, mask=column < half, other=0.0).to(tl.float32)
        sums = tl.sum(tl.reshape(high * first[None, :], [ROWS, GROUPS, GROUP]), 2) * left
        sums += tl.sum(tl.reshape(low * second[None, :], [ROWS, GROUPS, GROUP]), 2) * right
        sums += tl.sum(tl.reshape(first, [GROUPS, GROUP]), 1)[None, :] * left_zero
        sums += tl.sum(tl.reshape(second, [GROUPS, GROUP]), 1)[None, :] * right_zero
        tl.store(out + one * outputs + row, tl.sum(sums, 1).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _dequantize(codes, pairs, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Dequantize codes, with a scale and a zero for each group of a row."""
    scale, zero = _scale_and_zero(tl.load(pairs[:, None] + tl.arange(0, BLOCK // GROUP)[None, :]))
    grouped = tl.reshape(codes, [ROWS, BLOCK // GROUP, GROUP])
    return tl.reshape(grouped * scale[:, :, None] + zero[:, :, None], [ROWS, BLOCK])


@triton.jit
def _split_k_gemm(
    vectors, codes, scales, out, count, outputs, width, inputs, share,
    BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Multiply a block of rows by the vectors, along one split of the rows."""
    row, vector, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, TILE), tl.arange(0, BLOCK)
    begin, clipped = tl.program_id(1) * share, tl.minimum(row, outputs - 1).to(tl.int64)
    matrix = codes + clipped[:, None] * width + column[None, :]
    x = vectors + vector[None, :] * inputs + column[:, None]
    valid = (vector < count)[None, :]
    dtype = vectors.dtype.element_ty
    sums = tl.zeros([ROWS, TILE], tl.float32)
    for start in range(begin, begin + share, BLOCK):
        read = tl.load(matrix + start)
        first = tl.load(x + start, mask=valid, other=0.0)
        if BITS == 8:
            sums = tl.dot(read.to(dtype), first, sums)
        else:
            second = tl.load(x + width + start, mask=valid, other=0.0)
            high, low = _unpack(read)
            at = scales + clipped * (inputs // GROUP) + start // GROUP
            sums = tl.dot(_dequantize(high, at, ROWS, BLOCK, GROUP).to(dtype), first, sums)
            sums = tl.dot(_dequantize(low, at + width // GROUP, ROWS, BLOCK, GROUP).to(dtype), second, sums)
    if BITS == 8:
        sums *= tl.load(scales + clipped).to(tl.float32)[:, None]
    place = (tl.program_id(1) * count + vector).to(tl.int64)[None, :] * outputs + row[:, None]
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=valid & (row < outputs)[:, None])


@torch.library.custom_op("heddle::int4_gemv", mutates_args=())
def int4_gemv(vectors: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return the products of an int4 matrix with few vectors, [count, inputs].

    A group's scale and zero, in bfloat16, are one 32-bit integer.
    """
    (count, inputs), outputs = vectors.shape, len(codes)
    out = vectors.new_empty(count, outputs)
    width = triton.next_power_of_2(inputs // 2)
    rows = max(1, BLOCK_BYTES // width)
    with torch.cuda.device_of(vectors):
        _int4_gemv[(triton.cdiv(outputs, rows),)](
            vectors.contiguous(), codes, scales, out, outputs, inputs // 2,
            ROWS=rows, WIDTH=width, GROUP=inputs // scales.shape[1], VECTORS=count, num_warps=4, **pdl_options(vectors),
        )  # fmt: skip
    return out


@int4_gemv.register_fake
def _int4_gemv_shape(vectors: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    return vectors.new_empty(len(vectors), len(codes))


@torch.library.custom_op("heddle::split_k_gemm", mutates_args=())
def split_k_gemm(vectors: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return the products of a matrix with vectors, [count, inputs], as summands, [splits, count, outputs].

    Int8 has a scale for each row, int4 a word for each group; several summands are in float32.
    """
    (count, inputs), (outputs, width) = vectors.shape, codes.shape
    out = allocate_splits(vectors, codes)
    bits, group = (8, 1) if scales.dim() == 1 else (4, inputs // scales.shape[1])
    with torch.cuda.device_of(vectors):
        _split_k_gemm[(triton.cdiv(outputs, ROWS), len(out))](
            vectors.contiguous(), codes, scales, out, count, outputs, width, inputs, width // len(out),
            BITS=bits, ROWS=ROWS, BLOCK=block_bytes(width), GROUP=group, TILE=max(16, triton.next_power_of_2(count)),
            num_warps=4, num_stages=STAGES,
        )  # fmt: skip
    return out


@split_k_gemm.register_fake
def _split_k_gemm_shape(vectors: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    return allocate_splits(vectors, codes)


def allocate_splits(vectors: Tensor, codes: Tensor) -> Tensor:
    """Allocate the output of each split; there are enough splits to keep the GPU busy."""
    outputs, width = codes.shape
    programs, splits, block = triton.cdiv(outputs, ROWS), 1, block_bytes(width)
    while splits < SPLITS and programs * splits < PROGRAMS and width % (2 * splits * block) == 0:
        splits *= 2
    return vectors.new_empty(splits, len(vectors), outputs, dtype=vectors.dtype if splits == 1 else torch.float32)


def block_bytes(width: int) -> int:
    """Return how many bytes of a row of this width are read at a time."""
    return next(block for block in BLOCKS if width % block == 0)
