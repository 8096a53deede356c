"""Packed: matrices in eight or four bits, for models at rest; a product reads that much less memory.

Eight bits: whole numbers from -127 to 127, and a scale for each row. Four bits: whole numbers from -8 to 7, and for 32
of a row a scale and what a zero stands for (the blocks Q4_1 of ggml). Products are taken in bfloat16 with sums in
float32 on a CPU, in the dtype of the input elsewhere.
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

GROUP = 32  # numbers of a row that share a scale, in four bits
ROW_MULTIPLE = 16  # matrices in four bits have a multiple of so many rows
MAX_INT8_ROWS = 16  # vectors up to which torch's kernel for eight bits is faster on a CPU than to write the matrix out
INT8_MULTIPLE = 16  # that kernel needs rows of a multiple of it: of others it reads on, into the next, and adds that
CANNOT_SAVE = "weights: want them in float32 or bfloat16 to save them; those in 8 or 4 bits are for use"
OPS = torch.ops.aten


class QuantizedLinear(LinearKernel, ABC):
    """A product that holds its own numbers; the weight that it stands for is gone. It does not learn."""

    @abstractmethod
    def matmul(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        """Return x · matrix."""

    @abstractmethod
    def dequantize(self) -> Float[Tensor, "outputs inputs"]:
        """Return the numbers that are meant, written out in float32."""

    def forward(self, x: Float[Tensor, "... inputs"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "... _"]:
        y = self.matmul(x.reshape(-1, x.shape[-1])).to(x.dtype)
        y = y.view(*x.shape[:-1], y.shape[-1])
        return y if bias is None else y + bias.to(x.dtype)

    def dense_weight(self, weight: Tensor) -> Float[Tensor, "outputs inputs"]:
        return self.dequantize()

    def _save_to_state_dict(self, *given: object) -> None:
        raise UsageError(CANNOT_SAVE)

    def train(self, mode: bool = True) -> "QuantizedLinear":
        """Refuse to learn."""
        if mode:
            raise UsageError("weights: want them in float32 or bfloat16 to train; those in 8 or 4 bits cannot learn")
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedLinear":
        """Go along to another device; what the numbers lie in is not for a model's dtype to change."""
        for name, held in list(self.named_buffers(recurse=False)):
            self._buffers[name] = held.to(fn(held).device)
        return self

    def nbytes(self) -> int:
        """Count the bytes that it holds."""
        return sum(tensor.nbytes for tensor in self.buffers())


# --- eight bits -------------------------------------------------------------------------------------------------------


class Int8Linear(QuantizedLinear):
    """x · (whole * scales)."""

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
        if x.dtype is torch.float16:  # sums before they are scaled may be too large for it
            return F.linear(x, self.dequantize().to(x.dtype))
        return F.linear(x, self.codes.to(x.dtype)) * self.scales.to(x.dtype)

    def _matmul_cpu(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        rows, inputs = x.shape
        if rows == 1 and torch.compiler.is_compiling():  # it makes one loop of this, which no number leaves half done
            return (self.codes.float() * materialized(x.bfloat16().float())).sum(-1)[None] * self.scales.float()
        if rows > MAX_INT8_ROWS or inputs % INT8_MULTIPLE:
            return F.linear(x.bfloat16(), self.codes.bfloat16()) * self.scales
        return OPS._weight_int8pack_mm(x.bfloat16(), self.codes, self.scales)  # type: ignore[no-any-return]

    def dequantize(self) -> Float[Tensor, "outputs inputs"]:
        return self.codes * self.scales.float()[:, None]

    def rows(self, ids: Ids) -> Stream:
        """Return the rows of these ids, written out."""
        return self.codes[ids] * self.scales.float()[ids][..., None]


def materialized(x: Tensor) -> Tensor:
    """Return numbers as they lie: a compiler writes them down, and does not make them anew for each row of a matrix."""
    return x.as_strided(x.shape, x.stride())


class Int8Table(EmbeddingTable):
    """The rows of a matrix in eight bits, one for each id."""

    def __init__(self, int8: Int8Linear) -> None:
        super().__init__()
        self.int8 = int8

    def rows(self, ids: Ids) -> Stream:
        return self.int8.rows(ids)


# --- four bits --------------------------------------------------------------------------------------------------------


class Int4Codes(NamedTuple):
    """A matrix as whole numbers from 0 to 15: a number is (code - 8) * scale + zero, both of its group."""

    codes: Int[Tensor, "outputs inputs"]
    scales: Float[Tensor, "outputs groups 2"]  # scale and zero


def quantize_int4(weight: Float[Tensor, "outputs inputs"]) -> Int4Codes:
    """Round a matrix to four bits, group by group from its least number to its largest.

    A matrix that came out of such blocks, with codes 0 and 15 in each, goes back into the same codes.
    """
    groups = weight.detach().float().unflatten(1, (-1, GROUP))
    least, most = groups.amin(-1), groups.amax(-1)
    scale = ((most - least) / 15).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
    zero = (least + 8 * scale.float()).bfloat16()
    codes = ((groups - zero.float()[..., None]) / scale.float()[..., None]).round() + 8
    return Int4Codes(codes.clamp(0, 15).to(torch.int32).flatten(1), torch.stack((scale, zero), dim=-1))


def dequantize_int4(of: Int4Codes) -> Float[Tensor, "outputs inputs"]:
    """Return the matrix that is meant, in float32."""
    scale, zero = of.scales.float()[..., None].unbind(-2)
    groups: Tensor = of.codes.unflatten(1, (-1, GROUP))
    return ((groups - 8) * scale + zero).flatten(1)


class Int4Linear(QuantizedLinear, ABC):
    """x · ((codes - 8) * scale + zero), with all three as the device's kernel wants them."""

    codes: Tensor
    scales: Tensor

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.eval()


class CpuInt4Linear(Int4Linear):
    """By torch's kernel for CPUs."""

    scales: Float[Tensor, "groups outputs 2"]

    def __init__(self, of: Int4Codes) -> None:
        codes = OPS._convert_weight_to_int4pack_for_cpu(of.codes, 1)
        super().__init__(codes, of.scales.transpose(0, 1).contiguous())

    def matmul(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return OPS._weight_int4pack_mm_for_cpu(x.bfloat16(), self.codes, GROUP, self.scales)  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CpuInt4Linear":
        if (device := fn(self.codes).device).type != "cpu":
            raise UsageError(f"weights: want a model packed on {device} itself; in 4 bits it cannot leave the CPU")
        return self

    def dequantize(self) -> Float[Tensor, "outputs inputs"]:
        inputs = len(self.scales) * GROUP
        return self.matmul(torch.eye(inputs, dtype=self.scales.dtype, device=self.scales.device)).float().T


class PortableInt4Linear(Int4Linear):
    """By kernels of our own on a CUDA device, else written out at every product.

    A byte has a number of a row's left half above one of its right half.
    """

    codes: UInt8[Tensor, "outputs half"]
    scales: Int[Tensor, "outputs groups"]  # scale and zero in one

    def __init__(self, of: Int4Codes) -> None:
        left, right = of.codes.chunk(2, dim=1)
        super().__init__((left << 4 | right).to(torch.uint8), of.scales.contiguous().view(torch.int32).squeeze(-1))

    def matmul(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        if uses_quantized_gemm(x, self.codes, self.scales):
            return quantized_linear(x, self.codes, self.scales)
        return F.linear(x, self.dequantize().to(x.dtype))

    def dequantize(self) -> Float[Tensor, "outputs inputs"]:
        codes = torch.cat((self.codes >> 4, self.codes & 15), dim=1)
        scales = self.scales[..., None].view(torch.bfloat16)
        return dequantize_int4(Int4Codes(codes.to(torch.int32), scales))


def int4_linear(weight: Float[Tensor, "outputs inputs"]) -> QuantizedLinear:
    """Pack a matrix in four bits for the device that it lies on; in eight, where its shape fits no groups."""
    outputs, inputs = weight.shape
    if outputs % ROW_MULTIPLE or inputs % GROUP:
        return Int8Linear(weight)
    return (CpuInt4Linear if weight.device.type == "cpu" else PortableInt4Linear)(quantize_int4(weight))
