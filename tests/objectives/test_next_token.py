"""The next-token objective: a sum over the targets that count, with smoothing in training only."""

import dataclasses

import pytest
import torch
from laws.cases import VOCAB, ids
from torch import nn

from heddle.core import ConfigError, decode, encode
from heddle.data.rows import Batch
from heddle.models.networks import LanguageModel
from heddle.models.presets import build
from heddle.nn.state import State
from heddle.objectives import NextTokenConfig, ObjectiveConfig


def small(name: str = "gpt2", **dials: int) -> LanguageModel:
    model = build(name, layers=1, width=16, vocab=VOCAB, context=8, **dials)
    assert isinstance(model, LanguageModel)
    return model.double()


def batch(rows: int = 2, length: int = 8) -> Batch:
    tokens = ids(rows, length + 1)
    return Batch(tokens[:, :-1], tokens[:, 1:], torch.ones(rows, length), torch.arange(rows))


def test_the_loss_is_the_sum_of_cross_entropies() -> None:
    model, here = small(heads=2), batch()
    weights = torch.ones(2, 8)
    weights[1, 3:] = 0
    here = dataclasses.replace(here, weights=weights)
    logits = model.logits(here.inputs)
    each = nn.functional.cross_entropy(logits.transpose(1, 2), here.targets, reduction="none")
    assert torch.allclose(NextTokenConfig()(model, here).total, (each * weights).sum(), rtol=1e-12, atol=0)


def test_smoothing_mixes_in_the_uniform_distribution_in_training_only() -> None:
    model, here = small(heads=2), batch()
    odds = model.logits(here.inputs).log_softmax(-1)
    plain = -odds.gather(-1, here.targets[..., None]).sum()
    mix_predictions = 0.9 * plain + 0.1 * -odds.mean(-1).sum()
    smooth = NextTokenConfig(smoothing=0.1)
    assert torch.allclose(smooth(model.train(), here).total, mix_predictions, rtol=1e-12, atol=0)
    assert torch.allclose(smooth(model.eval(), here).total, plain, rtol=1e-12, atol=0)


def test_carried_state_makes_two_batches_one() -> None:
    model, whole = small("lstm_lm"), batch(length=8)
    halves = [
        dataclasses.replace(whole, inputs=i, targets=t, weights=w)
        for i, t, w in zip(*(x.chunk(2, dim=1) for x in (whole.inputs, whole.targets, whole.weights)), strict=True)
    ]
    objective = NextTokenConfig()
    first = objective(model, halves[0], State.empty(2, 1))
    second = objective(model, halves[1], first.carried)
    assert torch.allclose(first.total + second.total, objective(model, whole).total, rtol=1e-12, atol=0)


def test_a_smoothing_of_one_or_more_is_refused() -> None:
    for wrong in (-0.1, 1.0, 2.0):
        with pytest.raises(ConfigError, match="smoothing: want at least 0 and below 1"):
            NextTokenConfig(smoothing=wrong)


def test_the_config_survives_encoding() -> None:
    config = NextTokenConfig(smoothing=0.1)
    assert decode(ObjectiveConfig, encode(config)) == config
