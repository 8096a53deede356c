"""The guard: which steps are bad, what it remembers, and what it forgets."""

import math

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.training.loop import Guard, GuardConfig


def new(**fields: float) -> Guard:
    return Guard.start(GuardConfig(**fields), torch.device("cpu"))  # type: ignore[arg-type]


def judge(guard: Guard, norm: float, loss: float = 1.0) -> bool:
    return bool(guard.check(torch.tensor(loss), torch.tensor(norm)))


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1), (math.inf, 1), (1, math.nan), (1, math.inf), (-math.inf, 1)])
def test_what_is_not_finite_is_bad_from_the_first_step(loss: float, norm: float) -> None:
    guard = new()
    assert judge(guard, norm, loss)
    assert not judge(guard, 1.0)
    assert guard.mean == 1 and guard.good == 1 and guard.skipped == 1 and guard.consecutive == 0


def test_a_spike_is_told_only_after_enough_good_steps() -> None:
    guard = new(patience=3, spike=20)
    assert not judge(guard, 1.0)
    assert not judge(guard, 100.0), "too early to tell"
    guard = new(patience=3, spike=20)
    assert [judge(guard, norm) for norm in (1, 1, 1, 19, 50)] == [False, False, False, False, False]
    guard = new(patience=3, spike=20)
    assert [judge(guard, norm) for norm in (1, 1, 1, 21, 1)] == [False, False, False, True, False]


def test_bad_steps_do_not_move_the_mean() -> None:
    guard = new(patience=1)
    judge(guard, 2.0)
    for norm in (1000.0, math.nan, math.inf):
        assert judge(guard, norm)
    assert guard.mean == 2


def test_the_mean_is_plain_at_first_so_that_a_large_first_norm_does_not_hide_spikes() -> None:
    guard = new(patience=5, spike=20)
    for norm in (100, *[1] * 40):
        judge(guard, norm)
    assert float(guard.mean) == pytest.approx(140 / 41, rel=1e-5)
    assert judge(guard, 100.0)


def test_bad_steps_in_a_row_are_counted_and_a_good_one_ends_the_row() -> None:
    guard = new()
    seen = []
    for loss in (1, math.nan, math.nan, 1, math.nan):
        judge(guard, 1.0, loss)
        seen.append(guard.consecutive_bad())
    assert seen == [0, 1, 2, 0, 1]
    assert int(guard.skipped) == 3


def test_a_guard_goes_on_from_its_tensors() -> None:
    first, second = new(patience=2), new(patience=2)
    for norm in (1.0, 2.0, math.nan):
        judge(first, norm)
    saved: dict[str, Tensor] = {name: tensor.clone() for name, tensor in first.tensors().items()}
    second.load(saved)
    for norm in (1.5, 90.0, math.inf):
        assert judge(first, norm) == judge(second, norm)
    assert all(torch.equal(t, second.tensors()[n]) for n, t in first.tensors().items())


@pytest.mark.parametrize("wrong", [{"spike": 0.5}, {"patience": 0}, {"max_consecutive": 0}])
def test_nonsense_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: want at least 1"):
        GuardConfig(**wrong)  # type: ignore[arg-type]
