"""Coded: kernels for packed matrices compute what the matrices stand for, interpreted where there is no GPU."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="comes with torch for CUDA")
INTERPRETED = """
import json
import torch, triton
import triton.language as tl
from heddle.nn import Packed8, coded
from heddle.nn.packed import Packed4Anywhere, rounded

@triton.jit
def plain(codes):  # an interpreter knows no assembly
    return (codes >> 4).to(tl.float32), (codes & 15).to(tl.float32)

coded._widen = plain
worst = {}

def look(kind, found, wanted):
    off = ((found.float() - wanted).abs().max() / wanted.abs().max()).item()
    worst[kind] = max(worst.get(kind, 0.0), off)

for outputs, inputs in ((48, 256), (192, 512), (80, 192), (160, 1024)):
    weight = torch.randn(outputs, inputs)
    four, eight = Packed4Anywhere(rounded(weight)), Packed8(weight)
    for count in (1, 2):
        x = torch.randn(count, inputs)
        look("few", coded.times_few(x, four.codes, four.scales), x @ four.matrix().T)
    for count in (3, 50) if inputs % 256 == 0 else ():
        x = torch.randn(count, inputs).half()
        parts = coded.times_many(x, four.codes, four.scales)
        look("four, whole" if len(parts) == 1 else "four", parts.sum(0), x.float() @ four.matrix().half().float().T)
        look("eight", coded.times_many(x, eight.whole, eight.scales).sum(0), x.float() @ eight.matrix().T)
print(json.dumps(worst))
"""


def test_interpreted_kernels_compute_what_is_written_out() -> None:
    given = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, check=False, timeout=200, env=given
    )
    assert done.returncode == 0, done.stderr[-2000:]
    worst = json.loads(done.stdout.splitlines()[-1])
    assert 2e-5 < worst.pop("four, whole") < 1e-3  # what no program has to add to leaves in the vectors' own dtype
    assert set(worst) == {"few", "four", "eight"}
    assert max(worst.values()) < 2e-6
