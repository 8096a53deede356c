"""The moving average: its formula, skipped steps, and standing in for the weights."""

import pytest
import torch
from laws.cases import SMALL

from heddle.models import Model, build
from heddle.training.average import Average

GOOD, BAD = torch.tensor(False), torch.tensor(True)
MANY = torch.tensor(1e6)  # steps taken: far beyond the first


@pytest.fixture
def model() -> Model:
    return build("gpt2", vocab=31, context=8, **SMALL["gpt2"])


@torch.no_grad()
def move(model: Model, by: float) -> None:
    for weight in model.parameters():
        weight.add_(by)


def test_the_average_follows_the_weights_by_its_formula(model: Model) -> None:
    average = Average(model, 0.9)
    wanted = {n: w.double() for n, w in model.weights().items()}
    for step in range(4):
        move(model, 0.1 * (step + 1))
        average.update(model, GOOD, MANY)
        wanted = {n: 0.9 * wanted[n] + 0.1 * w.double() for n, w in model.weights().items()}
    assert all(torch.allclose(average.weights[n].double(), w, atol=1e-6) for n, w in wanted.items())


def test_a_skipped_step_leaves_the_average_alone(model: Model) -> None:
    average = Average(model, 0.9)
    before = {n: w.clone() for n, w in average.weights.items()}
    move(model, 1.0)
    average.update(model, BAD, MANY)
    assert all(torch.equal(before[n], w) for n, w in average.weights.items())


def test_the_average_does_not_share_memory_with_the_weights(model: Model) -> None:
    average = Average(model, 0.9)
    move(model, 1.0)
    assert not any(torch.equal(average.weights[n], w) for n, w in model.weights().items())


def test_in_place_the_model_is_the_average_and_then_itself_again_even_after_a_fault(model: Model) -> None:
    average = Average(model, 0.5)
    move(model, 1.0)
    own = {n: w.clone() for n, w in model.weights().items()}
    with pytest.raises(ZeroDivisionError), average.in_place(model):
        assert all(torch.equal(average.weights[n], w) for n, w in model.weights().items())
        raise ZeroDivisionError
    assert all(torch.equal(own[n], w) for n, w in model.weights().items())


def test_an_average_goes_on_from_saved_weights(model: Model) -> None:
    average, other = Average(model, 0.9), Average(model, 0.9)
    move(model, 1.0)
    average.update(model, GOOD, MANY)
    other.load({n: w.clone() for n, w in average.weights.items()})
    assert all(torch.equal(average.weights[n], w) for n, w in other.weights.items())


def test_the_random_start_is_soon_forgotten(model: Model) -> None:
    average = Average(model, 0.999)
    start = {n: w.clone() for n, w in model.weights().items()}
    move(model, 1.0)
    for step in range(1, 31):
        average.update(model, GOOD, torch.tensor(float(step)))
    assert all(torch.allclose(average.weights[n], w + 1, atol=1e-3) for n, w in start.items())
