"""Products of few rows on one thread: torch's own, and by oneDNN from a matrix whose layout was made once.

CPU microseconds of a product; the matrices are those of SmolLM2-135M.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import linear

OPS = torch.ops.mkldnn


def cpu_seconds(call: Callable[[], torch.Tensor], times: int) -> float:
    """Return the CPU seconds of a call."""
    for _ in range(3):
        call()
    begun = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - begun) / times


torch.set_num_threads(1)
print("| matrix | rows | torch | layout made once | the same bits as 64 rows |\n|---|---|---|---|---|")
for outputs, inputs in ((3072, 576), (576, 1536), (960, 576), (49152, 576)):
    matrix, x = torch.randn(outputs, inputs), torch.randn(64, inputs)
    layout = OPS._reorder_linear_weight(matrix, 16)
    whole = OPS._linear_pointwise(x, layout, None, "none", [], "")
    for rows in (1, 4, 8, 32):
        few, times = x[:rows], max(3, int(1e8 / (outputs * inputs * max(rows, 4))))
        by_layout = partial(OPS._linear_pointwise, few, layout, None, "none", [], "")
        plain, laid = cpu_seconds(partial(linear, few, matrix), times), cpu_seconds(by_layout, times)
        same = torch.equal(by_layout(), whole[:rows])
        print(f"| {outputs} x {inputs} | {rows} | {1e6 * plain:.0f} | {1e6 * laid:.0f} | {same} |")
