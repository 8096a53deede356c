"""Averages of the weights: formulas, skipped steps, standing in for the weights, and when one that waits begins."""

import json
from typing import Any

import pytest
import torch
from laws.cases import SMALL
from torch import Tensor

from heddle.models.networks import Model
from heddle.models.presets import build
from heddle.training.callbacks import StartAveraging
from heddle.training.optimizers import (
    MovingAverageConfig,
    PlainAverageConfig,
    TriggeredAverageConfig,
    WeightAverage,
    WeightAverageConfig,
)

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
    average = WeightAverage(model, MovingAverageConfig(decay=0.9))
    wanted = {n: w.double() for n, w in model.weights().items()}
    for step in range(4):
        move(model, 0.1 * (step + 1))
        average.update(model, GOOD, MANY)
        wanted = {n: 0.9 * wanted[n] + 0.1 * w.double() for n, w in model.weights().items()}
    assert all(torch.allclose(average.weights[n].double(), w, atol=1e-6) for n, w in wanted.items())


def test_a_skipped_step_leaves_the_average_alone(model: Model) -> None:
    average = WeightAverage(model, MovingAverageConfig(decay=0.9))
    before = {n: w.clone() for n, w in average.weights.items()}
    move(model, 1.0)
    average.update(model, BAD, MANY)
    assert all(torch.equal(before[n], w) for n, w in average.weights.items())


def test_the_average_does_not_share_memory_with_the_weights(model: Model) -> None:
    average = WeightAverage(model, MovingAverageConfig(decay=0.9))
    move(model, 1.0)
    assert not any(torch.equal(average.weights[n], w) for n, w in model.weights().items())


def test_in_place_the_model_is_the_average_and_then_itself_again_even_after_a_fault(model: Model) -> None:
    average = WeightAverage(model, MovingAverageConfig(decay=0.5))
    move(model, 1.0)
    own = {n: w.clone() for n, w in model.weights().items()}
    with pytest.raises(ZeroDivisionError), average.in_place(model):
        assert all(torch.equal(average.weights[n], w) for n, w in model.weights().items())
        raise ZeroDivisionError
    assert all(torch.equal(own[n], w) for n, w in model.weights().items())


def test_an_average_goes_on_from_saved_weights(model: Model) -> None:
    average, other = (
        WeightAverage(model, MovingAverageConfig(decay=0.9)),
        WeightAverage(model, MovingAverageConfig(decay=0.9)),
    )
    move(model, 1.0)
    average.update(model, GOOD, MANY)
    other.load({n: w.clone() for n, w in average.weights.items()})
    assert all(torch.equal(average.weights[n], w) for n, w in other.weights.items())


def test_the_random_start_is_soon_forgotten(model: Model) -> None:
    average = WeightAverage(model, MovingAverageConfig(decay=0.999))
    start = {n: w.clone() for n, w in model.weights().items()}
    move(model, 1.0)
    for step in range(1, 31):
        average.update(model, GOOD, torch.tensor(float(step)))
    assert all(torch.allclose(average.weights[n], w + 1, atol=1e-3) for n, w in start.items())


def followed(
    model: Model, config: WeightAverageConfig, begin_after: int | None = None
) -> tuple[WeightAverage, list[Tensor]]:
    """Take eight steps of which the fourth is a bad one; return the average and each good step's first weight."""
    average, seen, good = WeightAverage(model, config), [], 0
    weight = next(model.parameters())
    for step in range(1, 9):
        bad = step == 4
        if not bad:
            good += 1
            move(model, float(step))
            seen.append(weight.detach().double().clone())
        average.update(model, BAD if bad else GOOD, torch.tensor(float(good)))
        if good == begin_after:
            average.begin_after(good)
    return average, seen


def first_of(average: WeightAverage) -> Tensor:
    return next(iter(average.weights.values())).double()


@pytest.mark.parametrize("begin", [0, 3, 6])
def test_a_plain_average_is_the_mean_of_all_good_steps_after_one(model: Model, begin: int) -> None:
    average, seen = followed(model, PlainAverageConfig(begin=begin))
    torch.testing.assert_close(first_of(average), torch.stack(seen[begin:]).mean(0), atol=1e-5, rtol=1e-6)


def test_before_it_begins_an_average_is_the_weights_themselves(model: Model) -> None:
    for config in (PlainAverageConfig(begin=7), PlainAverageConfig(begin=100), TriggeredAverageConfig()):
        average, _ = followed(model, config)
        assert all(torch.equal(average.weights[n], w) for n, w in model.weights().items())


def test_an_average_that_waited_is_the_mean_since_it_began(model: Model) -> None:
    average, seen = followed(model, TriggeredAverageConfig(), begin_after=4)
    torch.testing.assert_close(first_of(average), torch.stack(seen[4:]).mean(0), atol=1e-5, rtol=1e-6)


class Trained:
    """What the callback looks at."""

    def __init__(self) -> None:
        self.take_step, self.guard = self, self
        self.good, self.metric = torch.tensor(0.0), None


def begun(model: Model, losses: list[float | None], patience: int) -> tuple[StartAveraging, int | None]:
    """Tell after which of the losses averaging begins."""
    callback: Any = StartAveraging(WeightAverage(model, TriggeredAverageConfig(patience=patience)), patience)
    trainer: Any = Trained()
    for number, loss in enumerate(losses):
        trainer.metric, trainer.good = loss, torch.tensor(float(number))
        callback.after_step(trainer, None)
        if callback.started_at is not None:
            return callback, number
    return callback, None


def test_averaging_begins_when_a_loss_is_above_the_best_of_long_enough_ago(model: Model) -> None:
    assert begun(model, [5.0, 4.0, 3.0, 2.0, 1.0], 2)[1] is None
    assert begun(model, [5.0, 4.0, 4.5, 4.4, 4.3], 2)[1] == 4  # 4.3 is above 4.0, the best but for the last two
    assert begun(model, [5.0, 4.0, 4.5, 4.4, 3.9], 2)[1] is None
    assert begun(model, [5.0, None, 4.0, None, 4.5, 4.4, 4.3], 2)[1] == 6  # steps without a validation do not count


def test_when_averaging_began_is_known_after_a_resume(model: Model) -> None:
    callback, number = begun(model, [5.0, 4.0, 4.5, 4.4, 4.3], 2)
    other = StartAveraging(WeightAverage(model, TriggeredAverageConfig()), 2)
    other.load(json.loads(json.dumps(callback.state())))
    assert float(other.average.begin) == float(callback.average.begin) == number
    assert other.state() == callback.state()
