"""Flash decoding (Dao et al. 2023) in Triton: attention of one query per row over the filled part of the KV cache.

The keys of a row are split among several programs, which read only places that hold a token; query heads that share a
key head are processed together, so that it is read once. The partial results are merged by their log-sum-exp. Needs
CUDA; `dispatch.py` imports it.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from heddle.nn.kernels.gemv import pdl_options

PROGRAMS = 264  # that keep a large GPU busy: two for each multiprocessor
MAX_SPLITS = 16  # all of which the merge must read
BLOCK = 32  # keys that a program processes at a time
LOG2_E = 1.4426950408889634


@triton.jit
def _load(vectors, place, column, stride, end, WIDTH: tl.constexpr):
    """Load the vectors at places before an end; nothing else is read."""
    return tl.load(vectors + place * stride + column, mask=(place < end) & (column < WIDTH), other=0.0)


@triton.jit
def _attend_split(
    query, key, value, lengths, output, maxima, denominators, scale,
    query_row, query_head, key_row, key_head, key_place, value_row, value_head, value_place,
    KV: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
    QUERIES: tl.constexpr, PADDED_WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attend with the queries of a group to one split of their keys."""
    row, head, split = tl.program_id(0) // KV, tl.program_id(0) % KV, tl.program_id(1)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    filled = tl.load(lengths + row).to(tl.int32) + 1  # with the token itself
    split_length = tl.cdiv(tl.cdiv(filled, BLOCK), SPLITS) * BLOCK
    begin, end = split * split_length, tl.minimum((split + 1) * split_length, filled)
    group, column, place = tl.arange(0, QUERIES), tl.arange(0, PADDED_WIDTH), tl.arange(0, BLOCK)
    valid = (group[:, None] < GROUP) & (column[None, :] < WIDTH)
    at = row.to(tl.int64) * query_row + (head * GROUP + group)[:, None] * query_head + column[None, :]
    q = tl.load(query + at, mask=valid, other=0.0)
    keys = key + row.to(tl.int64) * key_row + head * key_head
    values = value + row.to(tl.int64) * value_row + head * value_head
    maximum = tl.full([QUERIES], float("-inf"), tl.float32)
    denominator = tl.zeros([QUERIES], tl.float32)
    accumulator = tl.zeros([QUERIES, PADDED_WIDTH], tl.float32)
    for start in range(begin, end, BLOCK):
        here = start + place
        k = _load(keys, here[None, :], column[:, None], key_place, end, WIDTH)
        v = _load(values, here[:, None], column[None, :], value_place, end, WIDTH)
        score = tl.dot(q, k, input_precision="ieee") * scale
        score = tl.where(here[None, :] < end, score, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(score, 1))
        probabilities = tl.exp2(score - new_maximum[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        denominator = denominator * rescale + tl.sum(probabilities, 1)
        accumulator = accumulator * rescale[:, None] + tl.dot(probabilities.to(v.dtype), v, input_precision="ieee")
        maximum = new_maximum
    if SPLITS == 1:
        out = (row * KV * GROUP + head * GROUP + group)[:, None] * WIDTH + column[None, :]
        tl.store(output + out, (accumulator / denominator[:, None]).to(output.dtype.element_ty), mask=valid)
    else:
        each = (row * KV * GROUP + head * GROUP + group) * SPLITS + split
        tl.store(output + each[:, None] * WIDTH + column[None, :], accumulator, mask=valid)
        tl.store(maxima + each, maximum, mask=group < GROUP)
        tl.store(denominators + each, denominator, mask=group < GROUP)


@triton.jit
def _merge_splits(
    output, maxima, denominators, out,
    WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one query; a split without keys has weight zero."""
    one, split, column = tl.program_id(0), tl.arange(0, SPLITS), tl.arange(0, PADDED_WIDTH)
    if EARLY:  # the next kernel may start: the splits have waited for all before them
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    maximum = tl.load(maxima + one * SPLITS + split)
    denominator = tl.load(denominators + one * SPLITS + split)
    rescale = tl.exp2(maximum - tl.max(maximum, 0))
    at = (one * SPLITS + split)[:, None] * WIDTH + column[None, :]
    accumulator = tl.load(output + at, mask=column[None, :] < WIDTH, other=0.0)
    result = tl.sum(accumulator * rescale[:, None], 0) / tl.sum(denominator * rescale, 0)
    tl.store(out + one * WIDTH + column, result.to(out.dtype.element_ty), mask=column < WIDTH)


@torch.library.custom_op("heddle::flash_decode", mutates_args=())
def flash_decode(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Attend with one query per row to its first `lengths + 1` keys; returns [batch, heads, 1, width].

    query is [batch, heads, 1, width], key and value [batch, kv_heads, places, width], in float32 or half precision.
    """
    batch, heads, _, width = query.shape
    kv_heads, places = key.shape[1], key.shape[2]
    splits = _splits(batch * kv_heads, places)
    out = query.new_empty(batch, heads, 1, width)
    padded = triton.next_power_of_2(max(width, 16))
    partial = query.new_empty(batch, heads, splits, width, dtype=torch.float32) if splits > 1 else out
    stats = query.new_empty(2, batch, heads, splits, dtype=torch.float32) if splits > 1 else (out, out)
    with torch.cuda.device_of(query):
        _attend_split[(batch * kv_heads, splits)](
            query, key, value, lengths, partial, stats[0], stats[1], scale * LOG2_E,
            query.stride(0), query.stride(1), key.stride(0), key.stride(1), key.stride(2),
            value.stride(0), value.stride(1), value.stride(2),
            KV=kv_heads, GROUP=heads // kv_heads, WIDTH=width, SPLITS=splits,
            QUERIES=triton.next_power_of_2(max(heads // kv_heads, 16)), PADDED_WIDTH=padded, BLOCK=BLOCK,
            num_warps=4 if splits > 1 else 2, num_stages=4 if padded * query.element_size() <= 256 else 2,
            **pdl_options(query),
        )  # fmt: skip
        if splits > 1:
            _merge_splits[(batch * heads,)](
                partial,
                stats[0],
                stats[1],
                out,
                WIDTH=width,
                PADDED_WIDTH=padded,
                SPLITS=splits,
                num_warps=1,
                **pdl_options(query),
            )
    return out


def _splits(groups: int, places: int) -> int:
    """Return among how many programs the keys of a row are split: a power of two; one for many rows."""
    wanted = min(-(-PROGRAMS // groups), -(-places // BLOCK), MAX_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1)


@flash_decode.register_fake
def _shape(
    query: Float[Tensor, "batch heads 1 width"],
    key: Float[Tensor, "batch kv_heads places width"],
    value: Float[Tensor, "batch kv_heads places width"],
    lengths: Int[Tensor, " batch"],
    scale: float,
) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)
