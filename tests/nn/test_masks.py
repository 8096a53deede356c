"""Masks: windows, sinks, and places within documents."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn.base import Context
from heddle.nn.layers import SlidingWindowConfig, document_positions, key_distances
from heddle.nn.state import State

CPU = torch.device("cpu")


def seen(config: SlidingWindowConfig, ctx: Context, length: int) -> torch.Tensor:
    """Return what a window lets queries see, but for the sight."""
    distance, places = key_distances(ctx, length, length, CPU), document_positions(ctx, length, CPU)
    allowed = config.restrict(None, distance, places)
    assert allowed is not None
    return allowed


def test_a_window_holds_the_nearest() -> None:
    assert seen(SlidingWindowConfig(size=2), Context(), 5)[0, 0, 3].tolist() == [False, False, True, True, True]


def test_sinks_stay_in_sight() -> None:
    assert seen(SlidingWindowConfig(size=1, sinks=2), Context(), 6)[0, 0, 4].int().tolist() == [1, 1, 0, 0, 1, 0]


def test_every_document_has_sinks_of_its_own() -> None:
    documents = torch.tensor([[7, 7, 7, 3, 3, 3, 3]])
    assert document_positions(Context(documents=documents), 7, CPU).tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    last = seen(SlidingWindowConfig(size=1, sinks=1), Context(documents=documents), 7)[0, 0, 6]
    assert last.int().tolist() == [1, 0, 0, 1, 0, 0, 1]  # the first document's is taken away by its number


def test_a_cache_counts_places_from_its_first_token() -> None:
    ctx = Context(state=State.empty(2, 5).advance(torch.tensor([3, 1])))
    assert document_positions(ctx, 5, CPU).tolist() == [[0, 1, 2, 3, 4]]


def test_a_window_costs_its_size_and_its_sinks() -> None:
    assert SlidingWindowConfig(size=4, sinks=2).keys_per_query(100) == 6
    assert SlidingWindowConfig(size=4, sinks=2).keys_per_query(5) == 5


@pytest.mark.parametrize(("fields", "field"), [({"size": 0}, "size"), ({"size": 1, "sinks": -1}, "sinks")])
def test_a_window_that_cannot_be_is_refused(fields: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SlidingWindowConfig(**fields)
    assert caught.value.field == field
