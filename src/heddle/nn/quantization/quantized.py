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
from heddle.nn.base import Product
from heddle.nn.ends import Table
from heddle.nn.kernels import gemv_linear, quantized_linear, uses_gemv, uses_quantized_gemm

GROUP = 32  # numbers of a row that share a scale, in four bits
ROWS = 16  # matrices in four bits have a multiple of so many rows
SEVERAL = 16  # vectors up to which torch's kernel for eight bits is faster on a CPU than to write the matrix out
EVEN = 16  # that kernel needs rows of a multiple of it: of others it reads on, into the next, and adds that
SAVING = "weights: want them in float32 or bfloat16 to save them; those in 8 or 4 bits are for use"
OPS = torch.ops.aten


class Packed(Product, ABC):
    """A product that holds its own numbers; the weight that it stands for is gone. It does not learn."""

    @abstractmethod
    def times(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        """Return x · matrix."""

    @abstractmethod
    def matrix(self) -> Float[Tensor, "outputs inputs"]:
        """Return the numbers that are meant, written out in float32."""

    def forward(self, x: Float[Tensor, "... inputs"], weight: Tensor, bias: Tensor | None) -> Float[Tensor, "... _"]:
        y = self.times(x.reshape(-1, x.shape[-1])).to(x.dtype)
        y = y.view(*x.shape[:-1], y.shape[-1])
        return y if bias is None else y + bias.to(x.dtype)

    def stands_for(self, weight: Tensor) -> Float[Tensor, "outputs inputs"]:
        return self.matrix()

    def _save_to_state_dict(self, *given: object) -> None:
        raise UsageError(SAVING)

    def train(self, mode: bool = True) -> "Packed":
        """Refuse to learn."""
        if mode:
            raise UsageError("weights: want them in float32 or bfloat16 to train; those in 8 or 4 bits cannot learn")
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Packed":
        """Go along to another device; what the numbers lie in is not for a model's dtype to change."""
        for name, held in list(self.named_buffers(recurse=False)):
            self._buffers[name] = held.to(fn(held).device)
        return self

    def nbytes(self) -> int:
        """Count the bytes that it holds."""
        return sum(tensor.nbytes for tensor in self.buffers())


# --- eight bits -------------------------------------------------------------------------------------------------------


class Packed8(Packed):
    """x · (whole * scales)."""

    whole: Int8[Tensor, "outputs inputs"]
    scales: Float[Tensor, " outputs"]

    def __init__(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        super().__init__()
        wide = weight.detach().float()
        scales = (wide.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
        self.register_buffer("whole", (wide / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("scales", scales)
        self.eval()

    def times(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        if x.is_cpu:
            return self._on_cpu(x)
        if uses_gemv(x, self.whole):
            return (gemv_linear(x, self.whole) * self.scales).to(x.dtype)
        if uses_quantized_gemm(x, self.whole, self.scales):
            return quantized_linear(x, self.whole, self.scales)
        if x.dtype is torch.float16:  # sums before they are scaled may be too large for it
            return F.linear(x, self.matrix().to(x.dtype))
        return F.linear(x, self.whole.to(x.dtype)) * self.scales.to(x.dtype)

    def _on_cpu(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        rows, inputs = x.shape
        if rows == 1 and torch.compiler.is_compiling():  # it makes one loop of this, which no number leaves half done
            return (self.whole.float() * settled(x.bfloat16().float())).sum(-1)[None] * self.scales.float()
        if rows > SEVERAL or inputs % EVEN:
            return F.linear(x.bfloat16(), self.whole.bfloat16()) * self.scales
        return OPS._weight_int8pack_mm(x.bfloat16(), self.whole, self.scales)  # type: ignore[no-any-return]

    def matrix(self) -> Float[Tensor, "outputs inputs"]:
        return self.whole * self.scales.float()[:, None]

    def rows(self, ids: Ids) -> Stream:
        """Return the rows of these ids, written out."""
        return self.whole[ids] * self.scales.float()[ids][..., None]


def settled(x: Tensor) -> Tensor:
    """Return numbers as they lie: a compiler writes them down, and does not make them anew for each row of a matrix."""
    return x.as_strided(x.shape, x.stride())


class PackedTable(Table):
    """The rows of a matrix in eight bits, one for each id."""

    def __init__(self, packed: Packed8) -> None:
        super().__init__()
        self.packed = packed

    def rows(self, ids: Ids) -> Stream:
        return self.packed.rows(ids)


# --- four bits --------------------------------------------------------------------------------------------------------


class FourBits(NamedTuple):
    """A matrix as whole numbers from 0 to 15: a number is (code - 8) * scale + zero, both of its group."""

    codes: Int[Tensor, "outputs inputs"]
    scales: Float[Tensor, "outputs groups 2"]  # scale and zero


def rounded(weight: Float[Tensor, "outputs inputs"]) -> FourBits:
    """Round a matrix to four bits, group by group from its least number to its largest.

    A matrix that came out of such blocks, with codes 0 and 15 in each, goes back into the same codes.
    """
    groups = weight.detach().float().unflatten(1, (-1, GROUP))
    least, most = groups.amin(-1), groups.amax(-1)
    scale = ((most - least) / 15).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
    zero = (least + 8 * scale.float()).bfloat16()
    codes = ((groups - zero.float()[..., None]) / scale.float()[..., None]).round() + 8
    return FourBits(codes.clamp(0, 15).to(torch.int32).flatten(1), torch.stack((scale, zero), dim=-1))


def written_out(of: FourBits) -> Float[Tensor, "outputs inputs"]:
    """Return the matrix that is meant, in float32."""
    scale, zero = of.scales.float()[..., None].unbind(-2)
    groups: Tensor = of.codes.unflatten(1, (-1, GROUP))
    return ((groups - 8) * scale + zero).flatten(1)


class Packed4(Packed, ABC):
    """x · ((codes - 8) * scale + zero), with all three as the device's kernel wants them."""

    codes: Tensor
    scales: Tensor

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.eval()


class Packed4OnCpu(Packed4):
    """By torch's kernel for CPUs."""

    scales: Float[Tensor, "groups outputs 2"]

    def __init__(self, of: FourBits) -> None:
        codes = OPS._convert_weight_to_int4pack_for_cpu(of.codes, 1)
        super().__init__(codes, of.scales.transpose(0, 1).contiguous())

    def times(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return OPS._weight_int4pack_mm_for_cpu(x.bfloat16(), self.codes, GROUP, self.scales)  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Packed4OnCpu":
        if (device := fn(self.codes).device).type != "cpu":
            raise UsageError(f"weights: want a model packed on {device} itself; in 4 bits it cannot leave the CPU")
        return self

    def matrix(self) -> Float[Tensor, "outputs inputs"]:
        inputs = len(self.scales) * GROUP
        return self.times(torch.eye(inputs, dtype=self.scales.dtype, device=self.scales.device)).float().T


class Packed4Anywhere(Packed4):
    """By kernels of our own on a CUDA device, else written out at every product.

    A byte has a number of a row's left half above one of its right half.
    """

    codes: UInt8[Tensor, "outputs half"]
    scales: Int[Tensor, "outputs groups"]  # scale and zero in one

    def __init__(self, of: FourBits) -> None:
        left, right = of.codes.chunk(2, dim=1)
        super().__init__((left << 4 | right).to(torch.uint8), of.scales.contiguous().view(torch.int32).squeeze(-1))

    def times(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        if uses_quantized_gemm(x, self.codes, self.scales):
            return quantized_linear(x, self.codes, self.scales)
        return F.linear(x, self.matrix().to(x.dtype))

    def matrix(self) -> Float[Tensor, "outputs inputs"]:
        codes = torch.cat((self.codes >> 4, self.codes & 15), dim=1)
        scales = self.scales[..., None].view(torch.bfloat16)
        return written_out(FourBits(codes.to(torch.int32), scales))


def packed4(weight: Float[Tensor, "outputs inputs"]) -> Packed:
    """Pack a matrix in four bits for the device that it lies on; in eight, where its shape fits no groups."""
    outputs, inputs = weight.shape
    if outputs % ROWS or inputs % GROUP:
        return Packed8(weight)
    return (Packed4OnCpu if weight.device.type == "cpu" else Packed4Anywhere)(rounded(weight))
