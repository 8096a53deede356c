"""Schedules: their values at the edges and against the formulas."""

import math

import pytest

from heddle.core import ConfigError, decode, encode
from heddle.training.optimizers import (
    ConstantConfig,
    CosineConfig,
    InverseSquareRootConfig,
    RsqrtConfig,
    ScheduleConfig,
    StableDecayConfig,
)

ALL = [
    CosineConfig(),
    StableDecayConfig(),
    InverseSquareRootConfig(warmup=50),
    ConstantConfig(warmup=10),
    RsqrtConfig(),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: str(s.kind))
def test_every_factor_is_above_zero_and_at_most_one(schedule: ScheduleConfig) -> None:
    factors = [schedule.factor(step, 1000) for step in range(1000)]
    assert all(0 < factor <= 1 for factor in factors)


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: str(s.kind))
def test_the_config_survives_encoding(schedule: ScheduleConfig) -> None:
    assert decode(ScheduleConfig, encode(schedule)) == schedule


@pytest.mark.parametrize(
    "schedule", [CosineConfig(warmup=9), StableDecayConfig(warmup=9), ConstantConfig(warmup=9)], ids=lambda s: s.kind
)
def test_warm_up_rises_in_equal_parts_and_its_first_step_moves(schedule: ScheduleConfig) -> None:
    assert [schedule.factor(step, 1000) for step in range(10)] == pytest.approx([(i + 1) / 10 for i in range(10)])


def test_cosine_goes_from_one_through_the_middle_to_its_floor() -> None:
    schedule = CosineConfig(warmup=100, floor=0.1)
    assert schedule.factor(100, 1100) == 1
    assert schedule.factor(600, 1100) == pytest.approx(0.55)
    assert schedule.factor(350, 1100) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert schedule.factor(1100, 1100) == schedule.factor(5000, 1100) == pytest.approx(0.1)


def test_stable_decay_stays_and_then_falls_in_a_line() -> None:
    schedule = StableDecayConfig(warmup=10, decay=0.2, floor=0.0)
    assert {schedule.factor(step, 1000) for step in range(10, 801)} == {1.0}
    assert schedule.factor(900, 1000) == pytest.approx(0.5)
    assert schedule.factor(999, 1000) == pytest.approx(1 / 200)
    assert StableDecayConfig(decay=0.2, floor=0.5).factor(900, 1000) == pytest.approx(0.75)
    assert StableDecayConfig(warmup=0, decay=0.0).factor(999, 1000) == 1, "no decay at all"


def test_rsqrt_is_t5s_rate_of_one_over_the_root_of_the_step() -> None:
    schedule, peak = RsqrtConfig(constant=100), 1 / math.sqrt(100)
    for step in (1, 50, 100, 101, 400, 10_000):  # counted from 1, as the paper does
        assert peak * schedule.factor(step - 1, 1) == pytest.approx(1 / math.sqrt(max(step, 100)))
    assert 0.01 * RsqrtConfig().factor(524_287, 1) == pytest.approx(524_288**-0.5), "by default at a peak of 0.01"


def test_inverse_square_root_peaks_at_the_end_of_warm_up() -> None:
    schedule = InverseSquareRootConfig(warmup=99)
    factors = [schedule.factor(step, 1) for step in range(1000)]
    assert max(factors) == factors[99] == 1
    assert factors[399] == pytest.approx(0.5)
    assert factors[49] == pytest.approx(0.5)


def test_a_run_shorter_than_its_warm_up_only_rises() -> None:
    for schedule in (CosineConfig(warmup=100), ConstantConfig(warmup=100)):
        factors = [schedule.factor(step, 20) for step in range(20)]
        assert factors == sorted(factors) and factors[-1] < 0.25


@pytest.mark.parametrize(
    ("kind", "wrong", "field"),
    [
        (CosineConfig, {"warmup": -1}, "warmup"),
        (CosineConfig, {"floor": 1.5}, "floor"),
        (StableDecayConfig, {"decay": 1.5}, "decay"),
        (InverseSquareRootConfig, {"warmup": -1}, "warmup"),
        (ConstantConfig, {"warmup": -1}, "warmup"),
    ],
)
def test_nonsense_is_refused_by_name(kind: type[ScheduleConfig], wrong: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: want"):
        kind(**wrong)
