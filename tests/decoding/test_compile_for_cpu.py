"""Alone: a step compiled for a CPU has code of its own, and is compiled anew where the model's weights have moved."""

import subprocess
import sys

import pytest
import torch

from heddle.decoding.generation.decoders import StaticStep
from heddle.decoding.runtime import CaptureMode, cuda_graphs
from heddle.decoding.runtime.cuda_graphs import compile_for_cpu
from heddle.models.presets import build


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_each_has_code_of_its_own() -> None:
    one, two = compile_for_cpu(double), compile_for_cpu(double)
    assert one._torchdynamo_orig_callable.__code__ is not two._torchdynamo_orig_callable.__code__  # type: ignore[attr-defined]


def test_a_step_is_made_anew_when_weights_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(cuda_graphs, "compile_step", lambda act, device: made.append(device) or act)
    model = build("gpt2", layers=1, width=32, heads=2, vocab=64, context=32).eval()
    with torch.inference_mode():
        _, state = model.step(torch.zeros(1, 3, dtype=torch.long), model.new_state(1, 32))
        held = StaticStep(state, 32, model.vocab, CaptureMode.COMPILED, "key")
        held.begin(model, state)
        held.begin(model, state)
        before = len(made)
        model.to(torch.float64)
        held.begin(model, state)
    assert len(made) == before + 1


CODE = """
import torch
from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, generate
from heddle.models.presets import build
from heddle.nn.quantization import quantize_model

config = GenerationConfig(max_tokens=12)
for weights in ({weights},):
    model = build("llama", layers=1, width=64, heads=4, kv_heads=2, hidden=64, vocab=1024, context=64).eval()
    for p in model.parameters():
        p.data *= 2
    if weights:
        quantize_model(model, weights)
    for prompt in ([3, 4, 5], [9, 8, 7, 6]):
        (on,), (off,) = (generate(model, [prompt], replace(config, compile=word)) for word in ("on", "off"))
        assert weights or on == off, (on, off)
        scores = model.logits(torch.tensor([prompt + on]))[0, len(prompt) - 1 : -1]  # packed sums are rounded apart
        best = scores.max(-1).values
        assert (best - scores[range(len(on)), on] <= 0.02 * best.abs().max()).all(), (weights, on, off)
print("same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, pytest.param("int8", marks=pytest.mark.full)])
def test_compiled_alone_writes_the_same(weights: str | None) -> None:
    """In a process of its own: the shape checks that tests switch on cannot be traced."""
    words = [sys.executable, "-c", CODE.replace("{weights}", repr(weights))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.stdout.strip().endswith("same"), done.stderr[-2000:]
