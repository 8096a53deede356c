"""Triton kernels: each compiles for a GPU, present or not, from the names of its own file."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import heddle.nn.kernels
from heddle.nn.kernels import dispatch as kernels

triton = pytest.importorskip("triton", reason="comes with torch for CUDA")
FILES = [
    f"heddle.nn.kernels.{name}"
    for folder in heddle.nn.kernels.__path__
    for _, name, package in pkgutil.iter_modules([folder])
    if not package and "@triton.jit" in (Path(folder) / f"{name}.py").read_text()
]
SHARED = 232_448  # bytes that a program on such a GPU can have for itself
HALF, FULL, WHOLE = "*bf16", "*fp32", "i32"
FEW = dict.fromkeys(["vectors", "matrix", "out"], HALF) | dict.fromkeys(["outputs", "inputs", "stride"], WHOLE)
STRIDES = [f"{tensor}_{axis}" for tensor in ("query", "key", "value") for axis in ("row", "head", "place")]
READ = (
    dict.fromkeys(["query", "key", "value"], HALF)
    | dict.fromkeys(["output", "maxima", "denominators"], FULL)
    | {"lengths": "*i64", "scale": "fp32"}
    | dict.fromkeys([name for name in STRIDES if name != "query_place"], WHOLE)
)
SIZES = {"KV": 8, "GROUP": 4, "WIDTH": 64, "QUERIES": 16, "PADDED_WIDTH": 64, "BLOCK": 32}
JOIN = {"output": FULL, "maxima": FULL, "denominators": FULL, "out": HALF}
JUDGE = (
    {"logits": HALF, "targets": "*i64", "weights": FULL, "losses": FULL, "softcap": "fp32", "smoothing": "fp32"}
    | dict.fromkeys(["stride", "vocab", "padded"], WHOLE)
)  # fmt: skip
JUDGED = {"BLOCK": 4096, "SIDE": 8, "LOG2_E": 1.44, "LOWEST": -1e30}
NARROW = {
    "x": HALF,
    "maximum": FULL,
    "scale": FULL,
    "rows": WHOLE,
    "columns": WHOLE,
    "largest": "fp32",
    "least": "fp32",
}
NUMBERS = ["learning_rate", "weight_decay", "log_beta1", "log_beta2", "beta1", "beta2", "eps"]
MOVE = (
    dict.fromkeys(["weight", "gradient", "mean", "square", "count", "bad", "divisor"], FULL)
    | dict.fromkeys(NUMBERS, "fp32")
    | {"size": WHOLE}
)
CODES = {"vectors": HALF, "codes": "*u8", "scales": "*i32", "out": HALF, "outputs": WHOLE}
MANY = {"out": FULL} | dict.fromkeys(["count", "width", "inputs", "share"], WHOLE)
EIGHT = CODES | MANY | {"codes": "*i8", "scales": HALF}
coded = importlib.import_module("heddle.nn.kernels.quantized_gemm")
CODED = {"ROWS": coded.ROWS, "BLOCK": coded.BLOCKS[0], "TILE": kernels.MAX_GEMM_ROWS}
PLAIN: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
    ("heddle.nn.kernels.cross_entropy", "_cross_entropy", JUDGE, JUDGED | {"CAPPED": True, "SMOOTHED": True}),
    ("heddle.nn.kernels.cross_entropy", "_cross_entropy", JUDGE, JUDGED | {"CAPPED": False, "SMOOTHED": False}),
    (
        "heddle.nn.kernels.float8_cast",
        "_absolute_maximum",
        {"x": HALF, "maximum": FULL, "size": WHOLE},
        {"BLOCK": 8192},
    ),
    (
        "heddle.nn.kernels.float8_cast",
        "_cast",
        NARROW | {"row_major": "*fp8e4nv", "column_major": "*fp8e4nv"},
        {"SIDE": 64},
    ),
    (
        "heddle.nn.kernels.float8_cast",
        "_cast",
        NARROW | {"row_major": "*fp8e5", "column_major": "*fp8e5"},
        {"SIDE": 64},
    ),
    ("heddle.nn.kernels.adamw", "_adamw", MOVE, {"BLOCK": 4096}),
    ("heddle.nn.kernels.quantized_gemm", "_split_k_gemm", CODES | MANY, CODED | {"BITS": 4, "GROUP": 32}),
    (
        "heddle.nn.kernels.quantized_gemm",
        "_split_k_gemm",
        CODES | MANY,
        CODED | {"BITS": 4, "GROUP": 32, "BLOCK": 32, "TILE": 16},
    ),
    ("heddle.nn.kernels.quantized_gemm", "_split_k_gemm", EIGHT, CODED | {"BITS": 8, "GROUP": 1}),
]
EARLY: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
    ("heddle.nn.kernels.gemv", "_gemv", FEW, {"ROWS": 4, "BLOCK": 2048, "WHOLE": True, "VECTORS": 2}),
    ("heddle.nn.kernels.gemv", "_gemv", FEW, {"ROWS": 8, "BLOCK": 1024, "WHOLE": False, "VECTORS": 1}),
    (
        "heddle.nn.kernels.quantized_gemm",
        "_int4_gemv",
        CODES | {"half": WHOLE},
        {"ROWS": 8, "WIDTH": 1024, "GROUP": 32, "VECTORS": 2},
    ),
    ("heddle.nn.kernels.flash_decoding", "_attend_split", READ, SIZES | {"SPLITS": 8}),
    ("heddle.nn.kernels.flash_decoding", "_attend_split", READ, SIZES | {"SPLITS": 1}),
    ("heddle.nn.kernels.flash_decoding", "_merge_splits", JOIN, {"WIDTH": 64, "PADDED_WIDTH": 64, "SPLITS": 8}),
]


def file(name: str) -> ModuleType:
    return importlib.import_module(name)


def ptx(name: str, kernel: str, given: dict[str, str], sizes: dict[str, Any]) -> str:
    """Compile a kernel for a GPU that need not be there."""
    function = getattr(file(name), kernel)
    signature = {word: given.get(word, "constexpr") for word in function.arg_names}
    fixed = {(function.arg_names.index(word),): value for word, value in sizes.items()}
    even = [word for word, kind in given.items() if kind == WHOLE or kind.startswith("*")]  # as sizes of models are
    hints = {(function.arg_names.index(word),): [["tt.divisibility", 16]] for word in even}
    source = triton.compiler.ASTSource(function, signature, fixed, hints)
    how = {"num_stages": coded.STAGES} if kernel == "_split_k_gemm" else {}
    made = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32), options=how)
    assert made.metadata.shared <= SHARED
    return str(made.asm["ptx"])


def test_every_file_with_kernels_is_tried() -> None:
    assert {name for name, *_ in PLAIN + EARLY} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_kernels_see_the_names_of_their_own_file(name: str) -> None:
    kernels = [kernel for kernel in vars(file(name)).values() if isinstance(kernel, triton.runtime.KernelInterface)]
    assert kernels
    assert all(kernel.fn.__globals__ is vars(file(name)) for kernel in kernels)  # no wrapper stands between


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="kernels are interpreted")
@pytest.mark.parametrize(("name", "kernel", "given", "sizes"), PLAIN)
def test_kernels_compile_for_a_gpu(name: str, kernel: str, given: dict[str, str], sizes: dict[str, Any]) -> None:
    assert ptx(name, kernel, given, sizes)


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="kernels are interpreted")
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("name", "kernel", "given", "sizes"), EARLY)
def test_decoding_kernels_compile_with_and_without_dependent_launch(
    name: str, kernel: str, given: dict[str, str], sizes: dict[str, Any], early: bool
) -> None:
    assert ("griddepcontrol" in ptx(name, kernel, given, sizes | {"EARLY": early})) is early
