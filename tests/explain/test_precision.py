"""Half precision and quantized weights: shown as they compute; what needs gradients is refused."""

import json
from typing import Any

import pytest
import torch

from heddle.explain import ExplainOptions, explain
from heddle.models.networks import Model
from heddle.models.presets import build
from heddle.nn.quantization import quantize_model

WHATS = ("probabilities", "attention", "lens", "residual", "attribution", "beams", "trace")


def made() -> Model:
    return build("llama2-7b", layers=2, width=64, heads=4, kv_heads=2, hidden=64, vocab=256, context=32).eval()


def look(model: Model) -> dict[str, Any]:
    found = explain(model, None, [1, 5, 3, 7, 2], ExplainOptions(what=WHATS, max_tokens=3))
    assert found.html() and str(found)
    data: dict[str, Any] = json.loads(found.to_json())
    return data


def test_half_precision_is_no_sink() -> None:
    data = look(made().to(torch.bfloat16))
    assert all(one["sink"] is None for one in data["attention"])
    assert torch.tensor(data["attention"][0]["weights"]).sum(-1) == pytest.approx(1.0, abs=2e-2)


def test_quantized_weights_have_no_gradients_and_are_shown_otherwise() -> None:
    model = made()
    quantize_model(model, "int8")
    found = look(model)["attribution"]
    assert found["methods"].keys() == {"occlusion", "attention_rollout"}
    for name in ("gradient_x_input", "integrated_gradients"):
        assert found["refused"][name].startswith(f"{name}: want weights with gradients")
