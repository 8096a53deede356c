"""Products with matrices in eight and four bits beside bfloat16, on one GPU: microseconds by shape and vectors.

    python benchmarks/quantized.py [--counts 1 2 16 64] [--tiny]

Each product is what a step of generation takes, replayed from a CUDA graph over copies that no cache holds; scales and
sums over splits are kernels of their own here, which a compiled step takes together with what comes next.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from entry_point import positive, run_main
from results import need_gpu, record
from torch import Tensor

from heddle.nn.base import apply_linear
from heddle.nn.kernels import dispatch as kernels
from heddle.nn.quantization import Int8Linear
from heddle.nn.quantization.quantized_linear import int4_linear

SHAPES = [(3072, 2048), (2048, 2048), (16_384, 2048), (2048, 8192), (32_000, 2048)]  # of a Llama of 1 B weights
ALL = 250_000_000  # numbers of all copies together, at least: in four bits too more than a cache holds
ROUNDS = 6
Product = Callable[[Tensor], Tensor]


def spent(products: Sequence[Product], x: Tensor, tiny: bool) -> float:
    """Return the microseconds that each of some products takes on the device, the best of five rounds."""
    for product in products:
        product(x)
    if tiny:
        return 0.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in [*products] * ROUNDS:
            product(x)
    graph.replay()
    times: list[float] = []
    for _ in range(5):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return min(times) * 1000 / (ROUNDS * len(products))


@torch.inference_mode()
def compare(shape: tuple[int, int], counts: Sequence[int], device: str, tiny: bool) -> None:
    """Measure one shape; print and record."""
    copies = 1 if tiny else -(-ALL // (shape[0] * shape[1]))
    weights = [torch.randn(shape, device=device) for _ in range(copies)]
    ways: dict[str, list[Product]] = {
        "bfloat16": [partial(apply_linear, weight=w.bfloat16(), bias=None, kernel=None) for w in weights],
        "int8": [Int8Linear(w).matmul for w in weights],
        "int4": [int4_linear(w).matmul for w in weights],
    }
    del weights
    for count in counts:
        x = torch.randn(count, shape[1], device=device, dtype=torch.bfloat16)
        found = {name: round(spent(products, x, tiny), 1) for name, products in ways.items()}
        print(f"{shape[0]} x {shape[1]}, {count} vectors, us: {found}", flush=True)
        if not tiny:
            record(f"product {shape[0]}x{shape[1]}", vectors=count, **found)


def main() -> None:
    """Measure every shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--counts", type=positive, nargs="+", default=[1, kernels.MAX_GEMV_ROWS, 4, 16, kernels.MAX_GEMM_ROWS, 256]
    )
    parser.add_argument("--tiny", action="store_true")
    words = parser.parse_args()
    need_gpu(words.tiny)
    for shape in [(64, 256)] if words.tiny else SHAPES:
        compare(shape, words.counts, "cpu" if words.tiny else "cuda", words.tiny)


if __name__ == "__main__":
    run_main(main)
