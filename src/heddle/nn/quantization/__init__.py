"""Quantization: int8 and int4 weights for inference, and float8 products for training; prepacked float32 weights."""

from heddle.nn.quantization.float8 import use_float8
from heddle.nn.quantization.prepacked_linear import prepack_linears, remove_prepacked
from heddle.nn.quantization.quantize import Bits, is_quantized, quantize_model, refuse_quantized
from heddle.nn.quantization.quantized_linear import Int8Linear, QuantizedLinear
