"""Engine faults: errors where a prompt becomes a slot end their request alone, and no future is left waiting."""

import copy
import threading
from typing import Any

import pytest
import torch
from serving.models import served

from heddle.core import HeddleError
from heddle.decoding import generation_config
from heddle.decoding.generation import complete
from heddle.decoding.runtime import Request
from heddle.nn.quantization import prepack_linears
from heddle.nn.quantization.prepacked_linear import PrepackedLinear, _can_prepack
from heddle.nn.state import FullKVCacheConfig
from heddle.serving import Engine, EngineConfig, EngineRequest
from heddle.serving.slot_batch import BatchSize, SlotBatch

CONFIG = generation_config({"max_tokens": 6})


def fail(*given: Any) -> Any:
    raise RuntimeError("planted")


@pytest.mark.parametrize("stage", ["_prompt_logprobs", "ChunkedPrefill.join"])
def test_error_where_a_prompt_joins_ends_the_guilty_request_only(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served("gpt2")
    (wanted,) = complete(model, [Request([5, 3])], CONFIG)
    with Engine(model, EngineConfig(slots=4)) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(f"heddle.serving.scheduler.{stage}", fail)
            handles = [engine.submit(EngineRequest(Request([5, 3]), CONFIG, prompt_logprobs=n)) for n in (1, None)]
            with pytest.raises(HeddleError, match="stopped by RuntimeError"):
                handles[0].result()
            if stage == "_prompt_logprobs":
                assert handles[1].result().ids == wanted.ids
        assert engine.submit(EngineRequest(Request([5, 3]), CONFIG)).result().ids == wanted.ids
        assert engine.is_alive() and engine.load()["reading"] == 0


def test_model_that_cannot_be_captured_steps_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served("gpt2")
    monkeypatch.setattr(EngineConfig, "captures_on", lambda self, device: True)
    monkeypatch.setattr(type(model), "can_capture", lambda self: False)
    monkeypatch.setattr("heddle.serving.slot_batch.CapturedGraph", fail)
    with Engine(model, EngineConfig(slots=4)) as engine:
        (wanted,) = complete(model, [Request([5, 3])], CONFIG)
        assert engine.submit(EngineRequest(Request([5, 3]), CONFIG)).result().ids == wanted.ids


def test_calls_are_told_that_the_engine_died(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, begun, go = Engine(served("gpt2"), EngineConfig(slots=2)), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go.wait(30)
        monkeypatch.setattr("heddle.serving.scheduler.Scheduler.turn", fail)

    first = engine.run(hold)
    assert begun.wait(30)
    later = [engine.run(int) for _ in range(3)]
    go.set()
    assert first.result(30) is None
    for future in later:
        with pytest.raises(HeddleError, match="engine: stopped by RuntimeError"):
            future.result(30)
    engine.close()


def test_calls_taken_in_the_same_turn_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, begun, go = Engine(served("gpt2"), EngineConfig(slots=2)), threading.Event(), threading.Event()
    engine.run(lambda: begun.set() or go.wait(30))  # type: ignore[func-returns-value]
    assert begun.wait(30)
    breaking = engine.run(lambda: monkeypatch.setattr("heddle.serving.scheduler.Scheduler.turn", fail))
    later = engine.run(int)
    go.set()
    assert breaking.result(30) is None
    with pytest.raises(HeddleError, match="engine: stopped by RuntimeError"):
        later.result(30)
    engine.close()


@torch.inference_mode()
@pytest.mark.parametrize("slots", [1, 6, 1024, 1100])
def test_steps_may_have_as_many_rows_as_there_are_slots(slots: int) -> None:
    batch = SlotBatch(served("gpt2"), BatchSize(slots, 16, 0, 16), FullKVCacheConfig(), 0)
    assert batch.rows_for(slots) == max(batch.row_counts) == slots


def test_closed_engine_leaves_no_copies_that_it_made() -> None:
    model = copy.deepcopy(served("gpt2"))
    with Engine(model, EngineConfig(slots=2)):
        assert not _can_prepack() or prepack_linears(model) == 0
    assert not any(isinstance(module, PrepackedLinear) for module in model.modules())
    made = prepack_linears(model)
    Engine(model, EngineConfig(slots=2)).close()
    assert sum(isinstance(module, PrepackedLinear) for module in model.modules()) == made
