"""State: slots by path, rows chosen and forgotten, and what a carried state becomes on disk."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn import Hidden, KeyValues, State


def state() -> State:
    hidden = Hidden((torch.arange(6.0).view(3, 2), torch.arange(6.0, 12.0).view(3, 2)))
    return State.empty(3, 8).advance(torch.tensor([2, 5, 1])).with_slot("0.mixer", hidden)


def test_advance_counts_each_row_for_itself() -> None:
    assert state().advance(torch.tensor([1, 0, 2])).lengths.tolist() == [3, 5, 3]
    assert state().advance(2).lengths.tolist() == [4, 7, 3]


def test_a_new_slot_leaves_the_old_state_as_it_was() -> None:
    old = state()
    new = old.with_slot("1.mixer", Hidden((torch.zeros(3, 2),)))
    assert set(old.slots) == {"0.mixer"}
    assert set(new.slots) == {"0.mixer", "1.mixer"}


def test_select_takes_rows_of_everything() -> None:
    chosen = state().select(torch.tensor([2, 2, 0]))
    assert chosen.lengths.tolist() == [1, 1, 2]
    assert chosen.slots["0.mixer"].vectors[0].tolist() == [[4, 5], [4, 5], [0, 1]]


def test_reset_forgets_some_rows() -> None:
    cleared = state().reset(torch.tensor([False, True, False]))
    assert cleared.lengths.tolist() == [2, 0, 1]
    assert cleared.slots["0.mixer"].vectors[1].tolist() == [[6, 7], [0, 0], [10, 11]]


def test_detach_cuts_the_gradient() -> None:
    live = State.empty(1, 4).with_slot("a", Hidden((torch.ones(1, 2, requires_grad=True) * 2,)))
    assert live.slots["a"].vectors[0].requires_grad
    assert not live.detach().slots["a"].vectors[0].requires_grad


def test_a_cache_writes_each_row_at_its_own_steps() -> None:
    cache = KeyValues.empty(torch.zeros(2, 1, 2, 3), room=5)
    keys = torch.arange(1.0, 13.0).view(2, 1, 2, 3)
    cache.write(keys, -keys, torch.tensor([[0, 1], [3, 4]]))
    assert cache.keys[0, 0].sum(-1).tolist() == [6, 15, 0, 0, 0, 0]  # the last is the bin for padding
    assert cache.keys[1, 0].sum(-1).tolist() == [0, 0, 0, 24, 33, 0]
    assert torch.equal(cache.values, -cache.keys)


def test_a_carried_state_survives_as_named_tensors() -> None:
    back = State.from_tensors(state().tensors())
    assert torch.equal(back.lengths, state().lengths)
    for got, want in zip(back.slots["0.mixer"].vectors, state().slots["0.mixer"].vectors, strict=True):
        assert torch.equal(got, want)


def test_a_cache_is_not_carried_between_batches() -> None:
    cached = State.empty(1, 4).with_slot("0.mixer", KeyValues.empty(torch.zeros(1, 1, 1, 2), room=4))
    with pytest.raises(ConfigError, match="recurrent mixers only"):
        cached.tensors()


def test_growing_keeps_what_was_seen() -> None:
    cache = KeyValues.empty(torch.zeros(2, 1, 1, 4), room=3)
    cache.write(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4) * 2, torch.arange(3).expand(2, 3))
    grown = State.empty(2, 3).with_slot("a", cache).with_slot("b", Hidden((torch.ones(2, 5),))).grow(7)
    assert grown.room == 7
    assert grown.slots["a"].keys.shape == (2, 1, 7 + 1, 4)
    assert torch.equal(grown.slots["a"].values[:, :, :3], cache.values[:, :, :3])
    assert grown.slots["b"].vectors[0].shape == (2, 5)
