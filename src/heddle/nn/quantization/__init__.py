"""Quantization: weights in int8 and int4 for inference, and float8 products for training."""

from heddle.nn.quantization.float8 import use_float8
from heddle.nn.quantization.quantize import Bits, pack, packed_in, refuse_packed
from heddle.nn.quantization.quantized import Packed, Packed8

__all__ = ["Bits", "Packed", "Packed8", "pack", "packed_in", "refuse_packed", "use_float8"]
