"""Quantized GEMM kernels compute products with the dequantized matrices, interpreted where there is no GPU."""

import importlib
import json
import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from heddle.nn.kernels import dispatch as kernels
from heddle.nn.quantization import Int8Linear
from heddle.nn.quantization.quantized_linear import PortableInt4Linear, quantize_int4

triton = pytest.importorskip("triton", reason="comes with torch for CUDA")
INTERPRETED = """
import json
import torch, triton
import triton.language as tl
from triton.runtime import interpreter
from heddle.nn.quantization import Int8Linear
from heddle.nn.kernels import quantized_gemm as gemm
from heddle.nn.quantization.quantized_linear import PortableInt4Linear, quantize_int4

@triton.jit
def plain(codes):  # an interpreter knows no assembly
    return (codes >> 4).to(tl.float32), (codes & 15).to(tl.float32)

gemm._unpack = plain
worst = {}
patch = interpreter._patch_lang_tensor

def patch_index(tensor, scope):  # Triton 3.6 calls int() on an array of one number, which NumPy 2.4 refuses
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

interpreter._patch_lang_tensor = patch_index

def look(kind, found, wanted):
    off = ((found.float() - wanted).abs().max() / wanted.abs().max()).item()
    worst[kind] = max(worst.get(kind, 0.0), off)

def among(x):  # what lies before and behind would be seen
    around = torch.full((x.numel() + 2 * 4096,), float("nan") if x.is_floating_point() else 2**30 % 251, dtype=x.dtype)
    around[4096 : 4096 + x.numel()] = x.flatten()
    return around[4096 : 4096 + x.numel()].view(x.shape)

for outputs, inputs in ((48, 256), (192, 512), (80, 192), (160, 1024), (100, 576)):
    weight = torch.randn(outputs, inputs)
    four, eight = PortableInt4Linear(quantize_int4(weight)), Int8Linear(weight)
    four.codes, four.scales, eight.scales = among(four.codes), among(four.scales), among(eight.scales)
    for count in (1, 2):
        x = among(torch.randn(count, inputs))
        look("gemv", gemm.int4_gemv(x, four.codes, four.scales), x @ four.dequantize().T)
        torch.library.opcheck(gemm.int4_gemv, (x, four.codes, four.scales))
    for count in (3, 50):
        x = among(torch.randn(count, inputs).half())
        parts = gemm.split_k_gemm(x, four.codes, four.scales)
        look("four, whole" if len(parts) == 1 else "four", parts.sum(0), x.float() @ four.dequantize().half().float().T)
        parts = gemm.split_k_gemm(x, eight.codes, eight.scales)
        look("eight, whole" if len(parts) == 1 else "eight", parts.sum(0), x.float() @ eight.dequantize().T)
        torch.library.opcheck(gemm.split_k_gemm, (x, four.codes, four.scales))
        torch.library.opcheck(gemm.split_k_gemm, (x, eight.codes, eight.scales))
print(json.dumps(worst))
"""


def test_interpreted_kernels_compute_what_is_dequantized() -> None:
    given = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, check=False, timeout=280, env=given
    )
    assert done.returncode == 0, done.stderr[-2000:]
    worst = json.loads(done.stdout.splitlines()[-1])
    for kind in ("four, whole", "eight, whole"):
        assert 2e-5 < worst.pop(kind) < 1e-3  # what no program has to add to leaves in the vectors' own dtype
    assert set(worst) == {"gemv", "four", "eight"}
    assert max(worst.values()) < 2e-6


def test_assembly_unpacks_both_halves_of_four_bytes_in_order() -> None:
    text = importlib.import_module("heddle.nn.kernels.quantized_gemm").UNPACK.value
    held = {"$8": 0x1A2B3C4D}
    for line in text.strip("{} ").split(";"):
        words = line.replace(",", " ").split()
        if not words or words[0] == ".reg":
            continue
        operation, to, *given = words
        values = [held[word] if word in held else int(word, 0) for word in given]
        if operation == "and.b32":
            held[to] = values[0] & values[1]
        elif operation == "shr.u32":
            held[to] = values[0] >> values[1]
        elif operation == "bfe.u32":
            held[to] = values[0] >> values[1] & (1 << values[2]) - 1
        else:
            assert operation == "cvt.rn.f32.u32"
            held[to] = values[0]
    assert [held[f"${number}"] for number in range(8)] == [0x4, 0x3, 0x2, 0x1, 0xD, 0xC, 0xB, 0xA]


# Which kernel computes a product: the GEMV, the GEMM, or torch after the matrix is dequantized.
TAKES = [
    ((256, 512), torch.bfloat16, {1: "gemv", 2: "gemv", 3: "gemm", 64: "gemm", 65: None}),
    ((256, 512), torch.float32, {1: "gemv", 2: "gemv", 3: None}),
    ((64, 576), torch.float16, {1: "gemv", 5: "gemm", 64: "gemm"}),
    ((4096, 11_008), torch.bfloat16, {1: "gemm", 16: "gemm", 100: None}),
    ((64, 96), torch.bfloat16, {1: None, 16: None}),  # three groups: one lies in both halves of a row
]


@pytest.mark.parametrize(("shape", "dtype", "takers"), TAKES)
@torch.inference_mode()
def test_which_kernel_computes_an_int4_product(
    shape: tuple[int, int], dtype: torch.dtype, takers: dict[int, str | None]
) -> None:
    with FakeTensorMode():
        four = PortableInt4Linear(quantize_int4(torch.empty(shape, device="cuda")))
        for count, taker in takers.items():
            x = torch.empty(count, shape[1], device="cuda", dtype=dtype)
            takes = kernels.uses_quantized_gemm(x, four.codes, four.scales)
            held = kernels._fits_int4_gemv(x, four.codes, four.scales)
            assert (("gemv" if held else "gemm") if takes else None) == taker
            assert four.matmul(x).shape == (count, shape[0])


@torch.inference_mode()
def test_which_kernel_computes_an_int8_product() -> None:
    with FakeTensorMode():
        eight = Int8Linear(torch.empty(100, 576, device="cuda"))
        for count in (1, 2, 3, 64, 65):
            x = torch.empty(count, 576, device="cuda", dtype=torch.bfloat16)
            assert kernels.uses_gemv(x, eight.codes) is (count <= kernels.MAX_GEMV_ROWS)
            assert kernels.uses_quantized_gemm(x, eight.codes, eight.scales) is (count <= kernels.MAX_GEMM_ROWS)
            assert eight.matmul(x).dtype is torch.bfloat16
