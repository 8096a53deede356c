"""Composed models are one graph: the context, packed documents and the decode state go through torch.compile whole.

The trials run in a process of their own, for the shape checks that tests switch on cannot be traced.
"""

import json
import subprocess
import sys
from pathlib import Path

SPIKE = Path(__file__).parents[2] / "benchmarks" / "spike.py"


def test_packed_documents_and_decoding_are_one_graph_each() -> None:
    command = [sys.executable, str(SPIKE), "--only", "packed documents", "decoding", "checkpointing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    packed, decoding, checkpointing = (json.loads(line) for line in done.stdout.splitlines())
    assert packed["graphs"] == [1, 1, 1, 1], "a new cut of the row compiled anew"
    assert decoding["graphs"] == [1] + [2] * 8, "one graph for the prompt, one for all single steps"
    assert checkpointing["graphs"] == 1
    assert max(trial["apart"] for trial in (packed, decoding, checkpointing)) < 1e-5
