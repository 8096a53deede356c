"""Quantized linear layers: int8 and int4 weights for inference; a product reads that much less memory.

Int8: integers from -127 to 127, and a scale for each row. Int4: integers from -8 to 7, and a scale and a zero for each
32 of a row (the Q4_1 blocks of ggml). Products are in bfloat16 with float32 sums on a CPU, in the dtype of the input
elsewhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor
from torch.nn import functional as F

from heddle.core import UsageError
from heddle.core.shapes import Ids, Stream
from heddle.nn.base import LinearKernel
from heddle.nn.ends import EmbeddingTable
from heddle.nn.kernels import gemv_linear, quantized_linear, uses_gemv, uses_quantized_gemm

GROUP = 32  # numbers of a row that share a scale in int4
ROW_MULTIPLE = 16  # int4 matrices must have a multiple of this many rows
MAX_INT8_ROWS = 16  # for more vectors torch's int8 kernel on a CPU is slower than to dequantize first
INT8_MULTIPLE = 16  # that kernel needs row lengths of this multiple: else it reads into the next row and adds it
CANNOT_SAVE = "weights: quantized weights cannot be saved; load with weights=float32 or bfloat16"
OPS = torch.ops.aten


class QuantizedLinear(LinearKernel, ABC):
    """A linear kernel with quantized weights; the float weight is released. It cannot be trained."""

    @abstractmethod
    def matmul(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        """Return x · matrix."""

    @abstractmethod
    def dequantize(self) -> Float[Tensor, "outputs inputs"]:
        """Return the matrix in float32."""

    def forward(self, x: Float[Tensor, "... inputs"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "... _"]:
        y = self.matmul(x.reshape(-1, x.shape[-1])).to(x.dtype)
        y = y.view(*x.shape[:-1], y.shape[-1])
        return y if bias is None else y + bias.to(x.dtype)

    def dense_weight(self, weight: Tensor) -> Float[Tensor, "outputs inputs"]:
        return self.dequantize()

    def _save_to_state_dict(self, *_args: object) -> None:
        raise UsageError(CANNOT_SAVE)

    def train(self, mode: bool = True) -> "QuantizedLinear":
        """Refuse training."""
        if mode:
            raise UsageError("weights: quantized weights cannot be trained; load with weights=float32 or bfloat16")
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedLinear":
        """Move to another device; the dtypes of codes and scales do not follow the model's."""
        for name, buffer in list(self.named_buffers(recurse=False)):
            self._buffers[name] = buffer.to(fn(buffer).device)
        return self

    def nbytes(self) -> int:
        """Count the bytes of codes and scales."""
        return sum(tensor.nbytes for tensor in self.buffers())


# --- int8 -------------------------------------------------------------------------------------------------------------


class Int8Linear(QuantizedLinear):
    """x · (codes * scales)."""

    codes: Int8[Tensor, "outputs inputs"]
    scales: Float[Tensor, " outputs"]

    def __init__(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        super().__init__()
        floats = weight.detach().float()
        scales = (floats.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
        self.register_buffer("codes", (floats / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("scales", scales)
        self.eval()

    def matmul(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        if x.is_cpu:
            return self._matmul_cpu(x)
        if uses_gemv(x, self.codes):
            return (gemv_linear(x, self.codes) * self.scales).to(x.dtype)
        if uses_quantized_gemm(x, self.codes, self.scales):
            return quantized_linear(x, self.codes, self.scales)
        if x.dtype is torch.float16:  # unscaled sums may overflow it
            return F.linear(x, self.dequantize().to(x.dtype))
        return F.linear(x, self.codes.to(x.dtype)) * self.scales.to(x.dtype)

    def _matmul_cpu(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        rows, inputs = x.shape
        if rows == 1 and torch.compiler.is_compiling():  # compiled to one loop, without intermediate results in memory
            return (self.codes.float() * materialized(x.bfloat16().float())).sum(-1)[None] * self.scales.float()
        if rows > MAX_INT8_ROWS or inputs % INT8_MULTIPLE:
            return F.linear(x.bfloat16(), self.codes.bfloat16()) * self.scales
        return OPS._weight_int8pack_mm(x.bfloat16(), self.codes, self.scales)  # type: ignore[no-any-return]

    def dequantize(self) -> Float[Tensor, "outputs inputs"]:
        return self.codes * self.scales.float()[:, None]

    def rows(self, ids: Ids) -> Stream:
        """Return the rows of these ids as floats."""
        return self.codes[ids] * self.scales.float()[ids][..., None]


def materialized(x: Tensor) -> Tensor:
    """Return the same tensor so that a compiler stores it, instead of computing it again for each row of a matrix."""
    return x.as_strided(x.shape, x.stride())


class Int8Table(EmbeddingTable):
    """Embedding table in int8."""

    def __init__(self, int8: Int8Linear) -> None:
        super().__init__()
        self.int8 = int8

    def rows(self, ids: Ids) -> Stream:
        return self.int8.rows(ids)


# --- int4 -------------------------------------------------------------------------------------------------------------


class Int4Codes(NamedTuple):
    """A matrix as codes from 0 to 15: a number is (code - 8) * scale + zero, both of its group."""

    codes: Int[Tensor, "outputs inputs"]
    scales: Float[Tensor, "outputs groups 2"]  # scale and zero


def quantize_int4(weight: Float[Tensor, "outputs inputs"]) -> Int4Codes:
    """Quantize a matrix to int4, each group from its smallest number to its largest.

    A matrix dequantized from such groups, with codes 0 and 15 in each, gets the same codes again.
    """
    groups = weight.detach().float().unflatten(1, (-1, GROUP))
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / 15).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    codes = ((groups - zero.float()[..., None]) / scale.float()[..., None]).round() + 8
    return Int4Codes(codes.clamp(0, 15).to(torch.int32).flatten(1), torch.stack((scale, zero), dim=-1))


def dequantize_int4(matrix: Int4Codes) -> Float[Tensor, "outputs inputs"]:
    """Return the matrix in float32."""
    scale, zero = matrix.scales.float()[..., None].unbind(-2)
    groups: Tensor = matrix.codes.unflatten(1, (-1, GROUP))
    return ((groups - 8) * scale + zero).flatten(1)


class Int4Linear(QuantizedLinear, ABC):
    """x · ((codes - 8) * scale + zero), with all three in the layout of the device's kernel."""

    codes: Tensor
    scales: Tensor

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.eval()


class CpuInt4Linear(Int4Linear):
    """Int4 by torch's kernel for CPUs."""

    scales: Float[Tensor, "groups outputs 2"]

    def __init__(self, matrix: Int4Codes) -> None:
        codes = OPS._convert_weight_to_int4pack_for_cpu(matrix.codes, 1)
        super().__init__(codes, matrix.scales.transpose(0, 1).contiguous())

    def matmul(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        y: Tensor = OPS._weight_int4pack_mm_for_cpu(x.bfloat16(), self.codes, GROUP, self.scales)
        return y

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CpuInt4Linear":
        if (device := fn(self.codes).device).type != "cpu":
            raise UsageError(f"weights: int4 weights cannot be moved from the CPU; quantize the model on {device}")
        return self

    def dequantize(self) -> Float[Tensor, "outputs inputs"]:
        inputs = len(self.scales) * GROUP
        return self.matmul(torch.eye(inputs, dtype=self.scales.dtype, device=self.scales.device)).float().T


class PortableInt4Linear(Int4Linear):
    """Int4 by Triton kernels on CUDA, else dequantized at every product.

    A byte holds a code of a row's left half above one of its right half.
    """

    codes: UInt8[Tensor, "outputs half"]
    scales: Int[Tensor, "outputs groups"]  # scale and zero in one

    def __init__(self, matrix: Int4Codes) -> None:
        left, right = matrix.codes.chunk(2, dim=1)
        super().__init__((left << 4 | right).to(torch.uint8), matrix.scales.contiguous().view(torch.int32).squeeze(-1))

    def matmul(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        if uses_quantized_gemm(x, self.codes, self.scales):
            return quantized_linear(x, self.codes, self.scales)
        return F.linear(x, self.dequantize().to(x.dtype))

    def dequantize(self) -> Float[Tensor, "outputs inputs"]:
        codes = torch.cat((self.codes >> 4, self.codes & 15), dim=1)
        scales = self.scales[..., None].view(torch.bfloat16)
        return dequantize_int4(Int4Codes(codes.to(torch.int32), scales))


def int4_linear(weight: Float[Tensor, "outputs inputs"]) -> QuantizedLinear:
    """Quantize a matrix to int4 for the device that it is on; to int8 where its shape does not fit."""
    outputs, inputs = weight.shape
    if outputs % ROW_MULTIPLE or inputs % GROUP:
        return Int8Linear(weight)
    return (CpuInt4Linear if weight.device.type == "cpu" else PortableInt4Linear)(quantize_int4(weight))
