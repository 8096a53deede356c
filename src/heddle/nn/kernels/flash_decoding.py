"""Split: attention of one query a row over the filled part of its cache (Flash-Decoding, Dao et al. 2023), in Triton.

The keys of a row are split among several programs, each of which reads only places that hold a token; all query heads
that share a key head share the reading of it. What the programs found is then joined by the sizes of their exponents.
Needs a CUDA device: `nn/kernels/dispatch.py` imports it where one is at hand.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
# ruff: noqa: PLR0913 - a kernel is given pointers, strides and sizes one by one

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from heddle.nn.kernels.gemv import early

PROGRAMS = 264  # that keep a large device busy: two for each of its processors
MOST = 16  # splits, each of which the joining must look at
BLOCK = 32  # keys that a program looks at together
LOG2_E = 1.4426950408889634


@triton.jit
def _load(vectors, place, wide, stride, end, WIDTH: tl.constexpr):
    """Return the vectors at some places that lie before an end; nothing else is read."""
    return tl.load(vectors + place * stride + wide, mask=(place < end) & (wide < WIDTH), other=0.0)


@triton.jit
def _read(
    query, key, value, lengths, mixed, best, total, scale,
    query_row, query_head, key_row, key_head, key_place, value_row, value_head, value_place,
    KV: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
    QUERIES: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Let the queries of a group meet one split of their keys."""
    row, head, split = tl.program_id(0) // KV, tl.program_id(0) % KV, tl.program_id(1)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    filled = tl.load(lengths + row).to(tl.int32) + 1  # with the token itself
    share = tl.cdiv(tl.cdiv(filled, BLOCK), SPLITS) * BLOCK
    begin, end = split * share, tl.minimum((split + 1) * share, filled)
    group, wide, place = tl.arange(0, QUERIES), tl.arange(0, WIDE), tl.arange(0, BLOCK)
    asked = (group[:, None] < GROUP) & (wide[None, :] < WIDTH)
    at = row.to(tl.int64) * query_row + (head * GROUP + group)[:, None] * query_head + wide[None, :]
    q = tl.load(query + at, mask=asked, other=0.0)
    keys = key + row.to(tl.int64) * key_row + head * key_head
    values = value + row.to(tl.int64) * value_row + head * value_head
    high = tl.full([QUERIES], float("-inf"), tl.float32)
    weight = tl.zeros([QUERIES], tl.float32)
    mix = tl.zeros([QUERIES, WIDE], tl.float32)
    for start in range(begin, end, BLOCK):
        here = start + place
        k = _load(keys, here[None, :], wide[:, None], key_place, end, WIDTH)
        v = _load(values, here[:, None], wide[None, :], value_place, end, WIDTH)
        score = tl.dot(q, k, input_precision="ieee") * scale
        score = tl.where(here[None, :] < end, score, float("-inf"))
        higher = tl.maximum(high, tl.max(score, 1))
        odds = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(high - higher)
        weight = weight * shrink + tl.sum(odds, 1)
        mix = mix * shrink[:, None] + tl.dot(odds.to(v.dtype), v, input_precision="ieee")
        high = higher
    if SPLITS == 1:
        out = (row * KV * GROUP + head * GROUP + group)[:, None] * WIDTH + wide[None, :]
        tl.store(mixed + out, (mix / weight[:, None]).to(mixed.dtype.element_ty), mask=asked)
    else:
        each = (row * KV * GROUP + head * GROUP + group) * SPLITS + split
        tl.store(mixed + each[:, None] * WIDTH + wide[None, :], mix, mask=asked)
        tl.store(best + each, high, mask=group < GROUP)
        tl.store(total + each, weight, mask=group < GROUP)


@triton.jit
def _join(
    mixed, best, total, out, WIDTH: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Join what the splits of one query found; a split without a key has no weight."""
    one, split, wide = tl.program_id(0), tl.arange(0, SPLITS), tl.arange(0, WIDE)
    if EARLY:  # the next kernel may begin: what came before the splits is done, for they have waited for it
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    high = tl.load(best + one * SPLITS + split)
    weight = tl.load(total + one * SPLITS + split)
    shrink = tl.exp2(high - tl.max(high, 0))
    at = (one * SPLITS + split)[:, None] * WIDTH + wide[None, :]
    mix = tl.load(mixed + at, mask=wide[None, :] < WIDTH, other=0.0)
    found = tl.sum(mix * shrink[:, None], 0) / tl.sum(weight * shrink, 0)
    tl.store(out + one * WIDTH + wide, found.to(out.dtype.element_ty), mask=wide < WIDTH)


@torch.library.custom_op("heddle::mix_filled", mutates_args=())
def mix_filled(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """Mix values for one query a row over its first `lengths + 1` keys; returns [batch, heads, 1, width].

    query is [batch, heads, 1, width], key and value [batch, kv_heads, places, width], of float32 or half precision.
    """
    batch, heads, _, width = query.shape
    kv, places = key.shape[1], key.shape[2]
    splits = _splits(batch * kv, places)
    out = query.new_empty(batch, heads, 1, width)
    wide = triton.next_power_of_2(max(width, 16))
    many = query.new_empty(batch, heads, splits, width, dtype=torch.float32) if splits > 1 else out
    stats = query.new_empty(2, batch, heads, splits, dtype=torch.float32) if splits > 1 else (out, out)
    with torch.cuda.device_of(query):
        _read[(batch * kv, splits)](
            query, key, value, lengths, many, stats[0], stats[1], scale * LOG2_E,
            query.stride(0), query.stride(1), key.stride(0), key.stride(1), key.stride(2),
            value.stride(0), value.stride(1), value.stride(2),
            KV=kv, GROUP=heads // kv, WIDTH=width, SPLITS=splits,
            QUERIES=triton.next_power_of_2(max(heads // kv, 16)), WIDE=wide, BLOCK=BLOCK,
            num_warps=4 if splits > 1 else 2, num_stages=4 if wide * query.element_size() <= 256 else 2,
            **early(query),
        )  # fmt: skip
        if splits > 1:
            _join[(batch * heads,)](
                many, stats[0], stats[1], out, WIDTH=width, WIDE=wide, SPLITS=splits, num_warps=1, **early(query)
            )
    return out


def _splits(groups: int, places: int) -> int:
    """Return among how many programs the keys of a row are split: a power of two, one where rows are many."""
    wanted = min(-(-PROGRAMS // groups), -(-places // BLOCK), MOST)
    return 1 << max(0, wanted.bit_length() - 1)


@mix_filled.register_fake
def _shape(
    query: Float[Tensor, "batch heads 1 width"],
    key: Float[Tensor, "batch kv_heads places width"],
    value: Float[Tensor, "batch kv_heads places width"],
    lengths: Int[Tensor, " batch"],
    scale: float,
) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)
