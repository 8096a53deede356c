"""State: slots by path, rows chosen and forgotten, and what a carried state becomes on disk."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn.state import FullKVCacheConfig, HiddenState, KVCache, State


def state() -> State:
    hidden = HiddenState((torch.arange(6.0).view(3, 2), torch.arange(6.0, 12.0).view(3, 2)))
    return State.empty(3, 8).advance(torch.tensor([2, 5, 1])).with_slot("0.mixer", hidden)


def cache(like: torch.Tensor, capacity: int) -> KVCache:
    return KVCache.allocate((like, like), capacity, None, FullKVCacheConfig())


def test_advance_counts_each_row_for_itself() -> None:
    assert state().advance(torch.tensor([1, 0, 2])).lengths.tolist() == [3, 5, 3]
    assert state().advance(2).lengths.tolist() == [4, 7, 3]


def test_a_new_slot_leaves_the_old_state_as_it_was() -> None:
    old = state()
    new = old.with_slot("1.mixer", HiddenState((torch.zeros(3, 2),)))
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
    live = State.empty(1, 4).with_slot("a", HiddenState((torch.ones(1, 2, requires_grad=True) * 2,)))
    assert live.slots["a"].vectors[0].requires_grad
    assert not live.detach().slots["a"].vectors[0].requires_grad


def test_a_carried_state_survives_as_named_tensors() -> None:
    deep = state().with_slot("1.mixer", HiddenState(tuple(torch.full((3, 2), float(layer)) for layer in range(24))))
    back = State.from_tensors(deep.tensors())
    assert torch.equal(back.lengths, deep.lengths)
    for key in ("0.mixer", "1.mixer"):
        for got, want in zip(back.slots[key].vectors, deep.slots[key].vectors, strict=True):
            assert torch.equal(got, want)


def test_a_cache_is_not_carried_between_batches() -> None:
    cached = State.empty(1, 4).with_slot("0.mixer", cache(torch.zeros(1, 1, 1, 2), capacity=4))
    with pytest.raises(ConfigError, match="only recurrent models carry state"):
        cached.tensors()


def test_growing_keeps_what_was_seen() -> None:
    kept = cache(torch.zeros(2, 1, 1, 4), capacity=3)
    kept.write((torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4) * 2), torch.arange(3)[None], None)
    grown = State.empty(2, 3).with_slot("a", kept).with_slot("b", HiddenState((torch.ones(2, 5),))).resize(7)
    assert grown.capacity == 7
    assert grown.slots["a"].size == 7
    assert torch.equal(grown.slots["a"].read()[1][:, :, :3], kept.read()[1])
    assert grown.slots["b"].vectors[0].shape == (2, 5)


def test_choosing_all_rows_in_order_by_number_copies_nothing() -> None:
    old = state()
    assert old.select([0, 1, 2]) is old
    assert old.select([0, 1]).lengths.tolist() == [2, 5]
    assert old.select([2, 1, 0]).slots["0.mixer"].vectors[0].tolist() == [[4, 5], [2, 3], [0, 1]]


def test_recurrent_parts_cannot_take_tokens_back() -> None:
    assert state().can_rewind(0)
    assert not state().can_rewind(1)
    cached = State.empty(1, 4).with_slot("a", cache(torch.zeros(1, 1, 1, 2), capacity=4))
    assert cached.can_rewind(3)
    assert cached.advance(3).rewind(torch.tensor([1])).lengths.tolist() == [1]
