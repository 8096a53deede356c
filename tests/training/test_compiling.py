"""When a step is compiled, and that what was compiled is found again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heddle.core.system import Hardware
from heddle.data.rows import PackedRows, PairRows
from heddle.models.presets import PresetConfig
from heddle.objectives import LinearSamplingConfig, NextTokenConfig, SequenceConfig
from heddle.training import HardwareConfig, RunConfig
from heddle.training.compiling import should_compile_run

GPU, CPU = (Hardware(torch.device(kind), torch.bfloat16) for kind in ("cuda", "cpu"))


def wants(config: RunConfig, hardware: Hardware = GPU) -> bool:
    with torch.device("meta"):
        return should_compile_run(config, config.model.build(), hardware)


def run(name: str, **fields: object) -> RunConfig:
    return RunConfig(model=PresetConfig(name=name, layers=1, width=48, vocab=50), **fields)  # type: ignore[arg-type]


def test_auto_compiles_where_it_helps() -> None:
    assert wants(run("first"))
    assert not wants(run("first"), CPU)
    assert not wants(run("lstm_lm"))
    assert wants(run("qrnn_lm"))


def test_pairs_are_compiled_when_padded_to_one_length() -> None:
    many, one = (PairRows(length=64, source_length=64, multiple=size) for size in (8, 64))
    assert not wants(run("bart-base", rows=many, objective=SequenceConfig()))
    assert wants(run("bart-base", rows=one, objective=SequenceConfig()))


def test_a_loop_over_tokens_is_not_unrolled_unasked() -> None:
    sampled = NextTokenConfig(sampling=LinearSamplingConfig())
    assert wants(run("first", objective=sampled))
    assert not wants(run("qrnn_lm", objective=sampled))


@pytest.mark.parametrize(("word", "compiled"), [("on", True), ("off", False)])
def test_the_user_has_the_last_word(word: str, compiled: bool) -> None:
    assert wants(run("lstm_lm", rows=PackedRows(), hardware=HardwareConfig(compile=word)), CPU) is compiled  # type: ignore[arg-type]


TWICE = """
import torch
from torch._dynamo.utils import counters
from heddle.core.system import enable_compile_cache

class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3

enable_compile_cache()
x = torch.ones(4, requires_grad=True)
for _ in range(2):
    torch._dynamo.reset()
    torch.compile(Own.apply)(x).sum().backward()
print(dict(counters["aot_autograd"]), x.grad.tolist())
"""


def test_what_was_traced_is_kept_too_where_gradients_are_our_own(tmp_path: Path) -> None:
    """In a process of its own: the shape checks that tests switch on cannot be traced."""
    surroundings = os.environ | {"HEDDLE_CACHE": str(tmp_path)}
    surroundings.pop("TORCHINDUCTOR_CACHE_DIR", None)
    words = [sys.executable, "-c", TWICE]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=280, env=surroundings)
    assert "'autograd_cache_hit': 1" in done.stdout and "bypass" not in done.stdout, done.stdout + done.stderr[-2000:]
    assert "[6.0, 6.0, 6.0, 6.0]" in done.stdout
