"""Attributions are faithful: deleting what they rank highest costs the target more than deleting at random."""

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from heddle.explain import ExplainOptions
from heddle.explain.attribution import attribution
from heddle.explain.inputs import Reading, read
from heddle.models.networks import LanguageModel
from heddle.models.presets import build

KEYS, FILLERS, LENGTH, DELETED, TEXTS = 4, 12, 14, 2, 200
METHODS = ("gradient_x_input", "integrated_gradients", "occlusion")


def drawn(count: int, seed: int, length: int = LENGTH) -> Tensor:
    """Draw rows of fillers with two equal keys, a question, and the key as the answer."""
    draw = torch.Generator().manual_seed(seed)
    rows = KEYS + torch.randint(FILLERS, (count, length), generator=draw)
    keys = torch.randint(KEYS, (count, 1), generator=draw)
    places = torch.rand(count, length - 2, generator=draw).argsort(1)[:, :2] + 1
    rows = rows.scatter(1, places, keys.expand(-1, 2))
    return torch.cat((rows, torch.full((count, 1), KEYS + FILLERS), keys), 1)


@cache
def trained() -> LanguageModel:
    """Return a small Transformer that finds the key of a row."""
    torch.manual_seed(0)
    model = build("gpt2", layers=2, width=32, heads=2, vocab=KEYS + FILLERS + 1, context=32)
    assert isinstance(model, LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        rows = drawn(64, step, LENGTH - step % 5)  # the model must know rows from which tokens are missing
        loss = model.head.nll(model(rows[:, :-1])[:, -1], rows[:, -1]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2
    return model.eval()


def after_deleting(reading: Reading, places: list[int], target: tuple[int, ...]) -> float:
    """Return the log-probability of the target in the text without some tokens."""
    kept = [id for place, id in enumerate(reading.main.ids) if place not in places]
    reading = read(reading.model, None, kept, ExplainOptions())
    with reading.looking():
        return float(reading.logprob(target)[0])


@cache
def drops() -> dict[str, list[float]]:
    """Return, for each method and text, how much more deleting the highest tokens costs than deleting random ones."""
    model, draw = trained(), torch.Generator().manual_seed(1)
    found: dict[str, list[float]] = {}
    for row in drawn(TEXTS, seed=10_000).tolist():
        reading, target = read(model, None, row[:-1], ExplainOptions()), (row[-1],)
        shown = attribution(reading, ExplainOptions(steps=16))
        movable = list(range(len(row) - 2))  # the question stays
        chance = [movable[at] for at in torch.randperm(len(movable), generator=draw)[:DELETED].tolist()]
        random = after_deleting(reading, chance, target)
        for method, values in shown.methods.items():
            best = sorted(movable, key=lambda place: -values["text"][place])[:DELETED]
            found.setdefault(method, []).append(random - after_deleting(reading, best, target))
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean."""
    numbers = torch.tensor(values, dtype=torch.float64)
    margin = 1.96 * float(numbers.std()) / math.sqrt(len(numbers))
    return float(numbers.mean()) - margin, float(numbers.mean()) + margin


@pytest.mark.slow
def test_deleting_the_tokens_ranked_highest_costs_more_than_deleting_random_ones() -> None:
    for method in METHODS:
        assert len(drops()[method]) == TEXTS
        low, high = interval(drops()[method])
        assert 0 < low < high, (method, low, high)


@pytest.mark.slow
def test_rollout_is_reported() -> None:
    low, high = interval(drops()["attention_rollout"])
    assert math.isfinite(low) and math.isfinite(high)
