"""A run with experts shows how their work is spread, and resumes with the bias that balances it in the same bits."""

import json
from pathlib import Path

import torch
from laws.test_training import StopAfter
from reliability.harness import tiny, trainer_for, write_text

from heddle.core import replace
from heddle.models.networks import LanguageModelConfig, pre_norm
from heddle.nn.attention import AttentionConfig
from heddle.nn.channels import ExpertsConfig, GatedFeedForwardConfig
from heddle.nn.layers import RMSNormConfig
from heddle.nn.positions import LearnedPositionConfig
from heddle.training import RunConfig


def run(folder: Path) -> RunConfig:
    config = tiny(write_text(folder / "text.txt"), training__steps=6, every__save=100, rows__length=16)
    experts = ExpertsConfig(experts=4, expert=GatedFeedForwardConfig(hidden=8))
    body = pre_norm(AttentionConfig(heads=2), experts, norm=RMSNormConfig())
    vocab = config.model.expand().vocab
    model = LanguageModelConfig(vocab=vocab, width=16, context=16, plan=body, position=LearnedPositionConfig())
    return replace(config, model=model)


def test_a_run_tells_of_its_experts_and_resumes_with_their_bias(tmp_path: Path) -> None:
    config = run(tmp_path)
    whole = trainer_for(config, tmp_path / "whole" / "run")
    whole.fit()
    first = trainer_for(config, tmp_path / "cut" / "run")
    first.callbacks.insert(-1, StopAfter(3))
    first.fit()
    again = trainer_for(config, tmp_path / "cut" / "run")
    assert again.step == 3
    again.fit()
    weights, resumed = whole.model.weights(), again.model.weights()
    bias = "stack.channel.part.balance.bias"
    assert weights[bias].abs().max() > 0
    assert all(torch.equal(weight, resumed[name]) for name, weight in weights.items())
    lines = (tmp_path / "whole" / "run" / "metrics.jsonl").read_text().splitlines()
    metrics = [line for line in map(json.loads, lines) if "expert_load_imbalance" in line]
    assert metrics
    assert all(line["expert_dropped"] == 0 and line["expert_load_imbalance"] >= 1 for line in metrics)
