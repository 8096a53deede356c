"""GGUF quantization types (ggml): dequantization of blocks such as Q4_0, Q8_0, Q4_K and Q6_K to float32.

Each type stores a row as blocks of a fixed size; a block has one or more scales and a few bits for each number. The
results are bit for bit those of ggml: the same float32 products of the same float16 scales.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]  # [blocks, bytes of a block]
Floats = NDArray[np.float32]  # [blocks, numbers of a block]


@dataclass(frozen=True)
class GgmlQuantType:
    """A quantization type: numbers and bytes of one block, and how to dequantize blocks."""

    name: str
    block_size: int
    type_size: int
    dequantize: Callable[[Bytes], Floats]


def _half(blocks: Bytes, at: int) -> Floats:
    """Return the float16 number at a byte offset of each block, as a column."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> NDArray[np.uint8]:
    """Return the low four bits of all bytes, then the high four."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _fifth_bits(blocks: Bytes, at: int) -> NDArray[np.uint8]:
    """Return the fifth bits of 32 five-bit numbers, shifted into place."""
    bits: NDArray[np.uint8] = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return np.left_shift(bits, 4, dtype=np.uint8)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * ((_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)).astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    numbers = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * numbers.astype(np.float32) + _half(blocks, 2)


def _scales_and_minimums(packed: Bytes) -> tuple[Floats, Floats]:
    """Unpack eight scales and eight minimums, of six bits each, from twelve bytes."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((low & 63, (high & 15) | (low >> 6) << 4), axis=1)
    minimums = np.concatenate((middle & 63, (high >> 4) | (middle >> 6) << 4), axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _q4_k(blocks: Bytes) -> Floats:
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    numbers = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    scaled = (_half(blocks, 0) * scales)[..., None] * numbers - (_half(blocks, 2) * minimums)[..., None]
    return scaled.reshape(-1, 256)


def _q5_k(blocks: Bytes) -> Floats:
    scales, minimums = _scales_and_minimums(blocks[:, 4:16])
    numbers = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    scaled = (_half(blocks, 0) * scales)[..., None] * (numbers | fifth).astype(np.float32)
    return (scaled - (_half(blocks, 2) * minimums)[..., None]).reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Floats:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], dtype=np.uint8)[:, None] & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None] & 3
    numbers = (low.reshape(-1, 256) | high.reshape(-1, 256) << 4).astype(np.float32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[..., None] * numbers.reshape(-1, 16, 16)).reshape(-1, 256)


# By the type number in a file.
QUANT_TYPES = {
    0: GgmlQuantType("F32", 1, 4, _f32),
    1: GgmlQuantType("F16", 1, 2, _f16),
    2: GgmlQuantType("Q4_0", 32, 18, _q4_0),
    3: GgmlQuantType("Q4_1", 32, 20, _q4_1),
    6: GgmlQuantType("Q5_0", 32, 22, _q5_0),
    7: GgmlQuantType("Q5_1", 32, 24, _q5_1),
    8: GgmlQuantType("Q8_0", 32, 34, _q8_0),
    12: GgmlQuantType("Q4_K", 256, 144, _q4_k),
    13: GgmlQuantType("Q5_K", 256, 176, _q5_k),
    14: GgmlQuantType("Q6_K", 256, 210, _q6_k),
    30: GgmlQuantType("BF16", 1, 2, _bf16),
}
