"""Captured steps: what a CUDA graph demands of the engine, by a graph that behaves like one on a CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from serving.models import VOCAB, served
from torch import Tensor

from heddle.decoding import generation_config
from heddle.decoding.runtime import CaptureMode, Request
from heddle.nn.state import FullKVCacheConfig, State
from heddle.serving import Engine, EngineConfig, EngineRequest
from heddle.serving import slot_batch as slots
from heddle.serving.slot_batch import BatchSize, SlotBatch


class Graph:
    """Runs its function when it is captured, reads its inputs where they were then, and writes one output for ever."""

    captured = 0

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Tensor, State], mode: CaptureMode) -> None:
        self.function, self.inputs = function, inputs
        self.places = (inputs[0].data_ptr(), inputs[1].lengths.data_ptr())

    def recapture(self, model: Any) -> None:
        for _ in range(2):
            self.output = self.function(model, *self.inputs).clone()
        type(self).captured += 1

    def run(self, model: Any) -> Tensor:
        assert self.places == (self.inputs[0].data_ptr(), self.inputs[1].lengths.data_ptr())
        return self.output.copy_(self.function(model, *self.inputs))


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> type[Graph]:
    monkeypatch.setattr(slots, "CapturedGraph", Graph)
    monkeypatch.setattr(EngineConfig, "captures_on", lambda self, device: True)
    monkeypatch.setattr(slots, "CAPTURED", 16)
    monkeypatch.setattr(Graph, "captured", 0)
    return Graph


@pytest.mark.parametrize("name", ["gpt2", "mistral-7b", "lstm_lm", "seq2seq_attention"])
@pytest.mark.parametrize("invariant", ["on", "off"])
def test_captured_steps_give_the_answers_of_plain_ones(name: str, invariant: Any, captured: type[Graph]) -> None:
    model = served(name)
    config = generation_config({"max_tokens": 12, "logprobs": 1})
    ids = [[(3 * row + 5 * at) % VOCAB for at in range(4 + 9 * row)] for row in range(5)]
    rows = [Request(one[:1], one) if model.reads_source else Request(one) for one in ids]
    requests = [EngineRequest(row, config) for row in rows]
    found = []
    for graphs in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EngineConfig, "captures_on", lambda self, device, graphs=graphs: graphs)
            with Engine(model, EngineConfig(slots=4, invariant=invariant)) as engine:
                found.append([handle.result() for handle in [engine.submit(one) for one in requests]])
    assert found[0] == found[1]
    assert captured.captured > 0


@torch.inference_mode()
def test_steps_are_captured_at_start_and_never_again(captured: type[Graph]) -> None:
    batch = SlotBatch(served("gpt2"), BatchSize(8, 256, 0, 32), FullKVCacheConfig(), 0)
    batch.captures = True
    batch.warm_up()
    assert captured.captured == 4 * 3  # 1, 2, 4, 8 rows with capacity for 16, 64, 256 tokens
    for read in range(0, 256, 17):
        batch.step({0: (1, read), 2: (2, 0)})
    assert captured.captured == 12


@torch.inference_mode()
def test_capture_puts_back_what_its_runs_have_changed(captured: type[Graph]) -> None:
    steps = {0: (5, 0), 1: (9, 0)}
    found = []
    for capturing in (True, False):
        batch = SlotBatch(served("lstm_lm"), BatchSize(2, 256, 0, 32), FullKVCacheConfig(), 0)
        batch.captures = capturing
        found.append([batch.step(steps).clone() for _ in range(3)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
