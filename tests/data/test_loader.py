"""The loader: in order, ahead, closed promptly, and honest about faults."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from heddle.core import ConfigError, DataError
from heddle.data.rows import Batch, Loader, Row, RowPlan


class ProgressCallback(RowPlan):
    """Rows that hold their own number; slow and faulty where told."""

    def __init__(self, fault: int = -1, pause: float = 0.0, batch: int | None = None) -> None:
        self.rows_per_epoch, self.length, self.batch = 100, 1, batch
        self.fault, self.pause, self.built = fault, pause, 0

    def row(self, number: int) -> Row:
        if number == self.fault:
            raise DataError(f"row {number} is bad")
        time.sleep(self.pause * ((number * 7) % 3))
        self.built += 1
        return Row(np.array([number, number + 1]), np.ones(1, np.float32))


def loading_threads() -> int:
    return sum(thread.name.startswith("heddle-loader") for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order(workers: int) -> None:
    loader = Loader(ProgressCallback(pause=0.001), 4, start=8, workers=workers)
    for step, batch in enumerate(loader):
        assert batch.rows.tolist() == [8 + 4 * step + i for i in range(4)]
        assert loader.consumed == 8 + 4 * (step + 1)
        if step == 9:
            break
    assert loading_threads() == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_loop_goes_on_where_the_first_left(workers: int) -> None:
    loader = Loader(ProgressCallback(), 2, workers=workers)
    for _, _ in zip(range(3), loader, strict=False):
        pass
    assert next(iter(loader)).rows.tolist() == [loader.consumed - 2, loader.consumed - 1]
    assert loader.consumed == 8


def test_each_rank_gets_its_share() -> None:
    rows = [next(iter(Loader(ProgressCallback(), 6, rank=rank, world=3))).rows.tolist() for rank in range(3)]
    assert rows == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_fault_surfaces_at_its_batch_and_ends_the_threads(workers: int) -> None:
    loader = Loader(ProgressCallback(fault=13), 4, workers=workers)
    seen = []
    with pytest.raises(DataError, match="row 13 is bad"):
        for batch in loader:
            seen += batch.rows.tolist()
    assert seen == list(range(12))
    assert loader.consumed == 12
    assert loading_threads() == 0


def test_a_fault_of_the_consumer_ends_the_threads() -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in Loader(ProgressCallback(), 4, workers=2):
            raise ZeroDivisionError
    assert loading_threads() == 0


def test_leaving_is_prompt() -> None:
    batches = iter(Loader(ProgressCallback(pause=0.01), 4, workers=2, prefetch=50))
    next(batches)
    start = time.perf_counter()
    batches.close()  # type: ignore[attr-defined]
    assert time.perf_counter() - start < 1
    assert loading_threads() == 0


def test_leaving_ends_the_threads_though_their_generator_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Iterator[Batch]] = []  # as early Pythons 3.12 keep the locals of a closed generator
    ahead = Loader._prefetched
    monkeypatch.setattr(Loader, "_prefetched", lambda self, shares: kept.append(ahead(self, shares)) or kept[0])
    batches = iter(Loader(ProgressCallback(), 4, workers=2))
    next(batches)
    assert loading_threads() > 0
    batches.close()  # type: ignore[attr-defined]
    assert loading_threads() == 0


def test_workers_stay_within_their_prefetch() -> None:
    plan = ProgressCallback()
    batches = iter(Loader(plan, 1, workers=2, prefetch=3))
    next(batches)
    time.sleep(0.05)
    assert plan.built <= 7
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"batch": 5, "world": 2}, "batch"),
        ({"batch": 0}, "batch"),
        ({"batch": 4, "rank": 2, "world": 2}, "rank"),
        ({"batch": 4, "start": -1}, "start"),
        ({"batch": 4, "prefetch": 0}, "prefetch"),
        ({"batch": 4, "workers": -1}, "workers"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Loader(ProgressCallback(), **settings)


def test_a_plan_may_fix_the_batch() -> None:
    with pytest.raises(ConfigError, match="want 4, the batch of the row plan, got 8"):
        Loader(ProgressCallback(batch=4), 8)
    with pytest.raises(ConfigError, match="start"):
        Loader(ProgressCallback(batch=4), 4, start=2)
