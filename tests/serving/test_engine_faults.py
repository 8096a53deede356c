"""Engine faults: errors where a prompt becomes a slot end their request alone, and no future is left waiting."""

from typing import Any

import pytest
from serving.models import served

from heddle.core import HeddleError
from heddle.decoding import generation_config
from heddle.decoding.generation import complete
from heddle.decoding.runtime import Request
from heddle.serving import Engine, EngineConfig, EngineRequest

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
