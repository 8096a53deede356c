"""Composed models are one graph: the context, packed documents and the decode state are traced by torch.compile whole.

The trials run in a process of their own, for the shape checks that tests switch on cannot be traced.
"""

import json
import subprocess
import sys
from pathlib import Path

GRAPHS = Path(__file__).parents[2] / "benchmarks" / "compile_graphs.py"


def test_packed_documents_and_decoding_are_one_graph_each() -> None:
    command = [sys.executable, str(GRAPHS), "--only", "packed documents", "decoding", "checkpointing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    packed, decoding, checkpointing = (json.loads(line) for line in done.stdout.splitlines())
    assert packed["graphs"] == [1, 1, 1, 1], "a new cut of the row compiled anew"
    assert decoding["graphs"] == [1] + [2] * 8, "one graph for the prompt, one for all single steps"
    assert checkpointing["graphs"] == 1
    assert max(trial["apart"] for trial in (packed, decoding, checkpointing)) < 1e-5


TRIAL = """
import torch
from heddle.nn.base import Linear, FusedLinear
from heddle.nn.ends import SoftmaxHeadConfig
from heddle.nn.ends import fused_cross_entropy, head

head.CHUNK, fused_cross_entropy.TORCH_CHUNK = 0, 40 * 29
torch.manual_seed(0)
maps, end = [Linear(6, n, bias=True) for n in (6, 3)], SoftmaxHeadConfig(bias=True, softcap=3.0).build(29, 6)
weights = [w for m in (*maps, end) for w in m.parameters()]
for w in weights:
    torch.nn.init.normal_(w)
fused, targets, shares = FusedLinear(*maps), torch.randint(29, (2, 50)), torch.rand(2, 50)

def total(x):
    first, second = fused(x)
    return end.weighted_nll(first, targets, shares, 0.1) + second.sum()

x = torch.randn(2, 50, 6)
plain = torch.autograd.grad(total(x), weights)
fast = torch.autograd.grad(torch.compile(total, fullgraph=True, backend="aot_eager")(x), weights)
print(max((a - b).abs().max().item() for a, b in zip(plain, fast)))
"""


def test_fused_linears_and_the_fused_loss_are_one_graph() -> None:
    done = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 1e-4
