"""Masks: windows, sinks, and places within documents."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn.base import Context
from heddle.nn.layers import WindowConfig
from heddle.nn.layers import distance_of, places_of
from heddle.nn.state import State

CPU = torch.device("cpu")


def seen(config: WindowConfig, ctx: Context, length: int) -> torch.Tensor:
    """Return what a window lets queries see, but for the sight."""
    distance, places = distance_of(ctx, length, length, CPU), places_of(ctx, length, CPU)
    allowed = config.narrow(None, distance, places)
    assert allowed is not None
    return allowed


def test_a_window_holds_the_nearest() -> None:
    assert seen(WindowConfig(size=2), Context(), 5)[0, 0, 3].tolist() == [False, False, True, True, True]


def test_sinks_stay_in_sight() -> None:
    assert seen(WindowConfig(size=1, sinks=2), Context(), 6)[0, 0, 4].int().tolist() == [1, 1, 0, 0, 1, 0]


def test_every_document_has_sinks_of_its_own() -> None:
    documents = torch.tensor([[7, 7, 7, 3, 3, 3, 3]])
    assert places_of(Context(documents=documents), 7, CPU).tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    last = seen(WindowConfig(size=1, sinks=1), Context(documents=documents), 7)[0, 0, 6]
    assert last.int().tolist() == [1, 0, 0, 1, 0, 0, 1]  # the first document's is taken away by its number


def test_a_cache_counts_places_from_its_first_token() -> None:
    ctx = Context(state=State.empty(2, 5).advance(torch.tensor([3, 1])))
    assert places_of(ctx, 5, CPU).tolist() == [[0, 1, 2, 3, 4]]


def test_a_window_costs_its_size_and_its_sinks() -> None:
    assert WindowConfig(size=4, sinks=2).span(100) == 6
    assert WindowConfig(size=4, sinks=2).span(5) == 5


@pytest.mark.parametrize(("fields", "field"), [({"size": 0}, "size"), ({"size": 1, "sinks": -1}, "sinks")])
def test_a_window_that_cannot_be_is_refused(fields: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WindowConfig(**fields)
    assert caught.value.field == field
