"""Ends of a shared beginning are as probable as when each is read by itself."""

import pytest
import torch

from heddle.core import UsageError
from heddle.decoding.scoring import (
    ScoringWindows,
    SharedPrefix,
    TokenQueries,
    nll_sliding_window,
    score_continuations,
    score_tokens,
)
from heddle.models.networks import LanguageModel
from heddle.models.presets import PresetConfig

PRESETS = ["first", "gpt2", "lstm_lm", "gru_lm"]


def small(name: str) -> LanguageModel:
    dials = {"layers": 1, "width": 16, "heads": 2} if name in ("first", "gpt2") else {"layers": 1, "width": 16}
    model = PresetConfig(name=name, vocab=40, context=32, **dials).build(3)
    assert isinstance(model, LanguageModel)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return model.eval()


def alone(model: LanguageModel, start: list[int], end: list[int]) -> float:
    """Return the log-probability of an end, read with its start as one document."""
    (losses,) = nll_sliding_window(model, [[*start[1:], *end]], ScoringWindows(length=32, stride=32), start[0])
    return -float(losses[len(start) - 1 :].double().sum())


@pytest.mark.parametrize("name", PRESETS)
def test_ends_are_as_probable_as_when_read_alone(name: str) -> None:
    model = small(name)
    forks = [
        SharedPrefix([1], [[2], [3, 4]]),
        SharedPrefix([5, 6, 7, 8], [[9, 10, 11], [12], [9, 10]]),
        SharedPrefix([7] * 12, [[1, 2, 3, 4, 5]]),
    ]
    for fork, found in zip(forks, score_continuations(model, forks), strict=True):
        wanted = [alone(model, list(fork.prefix), list(end)) for end in fork.continuations]
        assert found == pytest.approx(wanted, abs=1e-4)


def test_many_forks_are_read_in_batches() -> None:
    model = small("first")
    forks = [SharedPrefix([1 + i % 30] * (1 + i % 20), [[2 + i % 30, 3], [i % 40]]) for i in range(300)]
    found = score_continuations(model, forks)
    for at in (0, 7, 150, 299):
        assert found[at] == pytest.approx(score_continuations(model, [forks[at]])[0], abs=1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_queries_agree_with_the_probabilities_of_the_next_token(name: str) -> None:
    model = small(name)
    rows = [[1, 2, 3, 4, 5, 6], [9, 8, 7]]
    glances = [
        TokenQueries(rows[0], [(1, [5, 6]), (4, [0])]),
        TokenQueries(rows[1], [(3, [1, 2, 3])]),
        TokenQueries([4, 4], []),
    ]
    found = score_tokens(model, glances)
    for row, glance, probs in zip(rows, glances, found, strict=False):
        for (place, tokens), each in zip(glance.queries, probs, strict=True):
            assert each == pytest.approx([alone(model, row[:place], [token]) for token in tokens], abs=1e-4)
    assert found[2] == []


def test_a_model_that_sees_all_is_refused() -> None:
    model = small("first")
    model.sight = "all"
    with pytest.raises(UsageError, match="sees the past"):
        score_continuations(model, [SharedPrefix([1], [[2]])])
