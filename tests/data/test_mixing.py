"""Mixing: exact shares, each source in its own order, and wrong weights named."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from heddle.core import ConfigError
from heddle.data.rows import MixedPlan, Row, RowPlan, apportion
from heddle.data.rows.mixing import BLOCK


class Numbers(RowPlan):
    """Rows that hold their own number."""

    def __init__(self, name: int, rows: int = 7, length: int = 2, batch: int | None = None) -> None:
        self.name, self.rows_per_epoch, self.length, self.batch = name, rows, length, batch

    def row(self, number: int) -> Row:
        return Row(np.array([self.name, number]), np.ones(1, np.float32))


class Apart(Numbers):
    """Rows with documents kept apart."""

    def row(self, number: int) -> Row:
        return dataclasses.replace(super().row(number), documents=np.zeros(1, np.int64))


def test_each_block_holds_the_exact_shares() -> None:
    mixed = MixedPlan([(Numbers(0), 1), (Numbers(1), 2), (Numbers(2), 0.5)], seed=3)
    for block in (0, 1, 17):
        names = Counter(int(mixed.row(block * BLOCK + i).tokens[0]) for i in range(BLOCK))
        assert dict(names) == {0: 286, 1: 571, 2: 143}


def test_each_source_is_read_in_its_own_order_without_gaps() -> None:
    mixed = MixedPlan([(Numbers(0), 1), (Numbers(1), 3)], seed=0)
    seen: dict[int, list[int]] = {0: [], 1: []}
    for number in range(3 * BLOCK):
        name, inner = mixed.row(number).tokens.tolist()
        seen[name].append(inner)
    assert seen == {0: list(range(750)), 1: list(range(2250))}


def test_a_row_needs_no_history() -> None:
    forward, jumping = (MixedPlan([(Numbers(0), 1), (Numbers(1), 1)], seed=5) for _ in range(2))
    wanted = [forward.place(i) for i in range(4 * BLOCK)]
    for number in (3999, 0, 2500, 1000, 999, 3000):
        assert jumping.place(number) == wanted[number]


def test_blocks_and_seeds_are_shuffled_differently() -> None:
    def names(seed: int, block: int) -> list[int]:
        mixed = MixedPlan([(Numbers(0), 1), (Numbers(1), 1)], seed)
        return [mixed.place(block * BLOCK + i)[0] for i in range(BLOCK)]

    assert names(0, 0) != names(0, 1)
    assert names(0, 0) != names(1, 0)


@pytest.mark.parametrize(
    ("weights", "shares"), [([1, 1, 1], [4, 3, 3]), ([1], [10]), ([3, 1], [8, 2]), ([9, 1], [9, 1])]
)
def test_seats_go_by_largest_remainder(weights: list[float], shares: list[int]) -> None:
    assert apportion(weights, 10) == shares


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 1e-9])
def test_a_weight_that_cannot_be_kept_is_named(weight: float) -> None:
    with pytest.raises(ConfigError, match=r"mixture\.1\.weight"):
        MixedPlan([(Numbers(0), 1), (Numbers(1), weight)], seed=0)


def test_sources_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"mixture\.1\.length: want 2, got 3"):
        MixedPlan([(Numbers(0), 1), (Numbers(1, length=3), 1)], seed=0)
    with pytest.raises(ConfigError, match=r"mixture\.1: want rows of kind packed"):
        MixedPlan([(Numbers(0), 1), (Numbers(1, batch=4), 1)], seed=0)
    with pytest.raises(ConfigError, match=r"mixture\.1\.boundaries"):
        MixedPlan([(Numbers(0), 1), (Apart(1), 1)], seed=0)
    with pytest.raises(ConfigError, match="at least one source"):
        MixedPlan([], seed=0)
