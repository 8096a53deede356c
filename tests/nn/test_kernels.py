"""Kernels in Triton: each compiles for a GPU, one at hand or not, from the names of its own file."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import heddle.nn

triton = pytest.importorskip("triton", reason="comes with torch for CUDA")
FILES = [
    name
    for folder in heddle.nn.__path__
    for _, name, _ in pkgutil.iter_modules([folder])
    if "@triton.jit" in (Path(folder) / f"{name}.py").read_text()
]
HALF, FULL, WHOLE = "*bf16", "*fp32", "i32"
FEW = dict.fromkeys(["vectors", "matrix", "out"], HALF) | dict.fromkeys(["outputs", "inputs", "stride"], WHOLE)
STRIDES = [f"{tensor}_{axis}" for tensor in ("query", "key", "value") for axis in ("row", "head", "place")]
READ = (
    dict.fromkeys(["query", "key", "value"], HALF)
    | dict.fromkeys(["mixed", "best", "total"], FULL)
    | {"lengths": "*i64", "scale": "fp32"}
    | dict.fromkeys([name for name in STRIDES if name != "query_place"], WHOLE)
)
SIZES = {"KV": 8, "GROUP": 4, "WIDTH": 64, "QUERIES": 16, "WIDE": 64, "BLOCK": 32}
JOIN = {"mixed": FULL, "best": FULL, "total": FULL, "out": HALF}
SHAPES: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
    ("few", "_multiply", FEW, {"ROWS": 4, "BLOCK": 2048, "WHOLE": True, "FEW": 2}),
    ("few", "_multiply", FEW, {"ROWS": 8, "BLOCK": 1024, "WHOLE": False, "FEW": 1}),
    ("split", "_read", READ, SIZES | {"SPLITS": 8}),
    ("split", "_read", READ, SIZES | {"SPLITS": 1}),
    ("split", "_join", JOIN, {"WIDTH": 64, "WIDE": 64, "SPLITS": 8}),
]


def file(name: str) -> ModuleType:
    return importlib.import_module(f"heddle.nn.{name}")


@pytest.mark.parametrize("name", FILES)
def test_kernels_see_the_names_of_their_own_file(name: str) -> None:
    kernels = [kernel for kernel in vars(file(name)).values() if isinstance(kernel, triton.runtime.KernelInterface)]
    assert kernels
    assert all(kernel.fn.__globals__ is vars(file(name)) for kernel in kernels)  # no wrapper stands between


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="kernels are interpreted")
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("name", "kernel", "given", "sizes"), SHAPES)
def test_kernels_compile_for_a_gpu(
    name: str, kernel: str, given: dict[str, str], sizes: dict[str, Any], early: bool
) -> None:
    function = getattr(file(name), kernel)
    signature = {word: given.get(word, "constexpr") for word in function.arg_names}
    fixed = {(function.arg_names.index(word),): value for word, value in (sizes | {"EARLY": early}).items()}
    source = triton.compiler.ASTSource(function, signature, fixed)
    made = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32))
    assert ("griddepcontrol" in made.asm["ptx"]) is early
