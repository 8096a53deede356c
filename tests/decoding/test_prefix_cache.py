"""Prefixes: beginnings that were read before are found, kept within a budget, and never mixed up."""

import pytest
import torch
from laws.cases import SMALL, own_presets

from heddle.core import ConfigError, UsageError
from heddle.decoding.generation import GenerationConfig, complete
from heddle.decoding.runtime import PrefixCache, Request, make_requests
from heddle.decoding.runtime.prefix_cache import MIN_TOKENS, common_prefixes
from heddle.models.networks import AutoregressiveModel, LanguageModel
from heddle.nn.state import Int8KVCacheConfig, State

LONG = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def model(name: str = "gpt2", **dials: int) -> LanguageModel:
    made = own_presets()[name].make(**{"vocab": 23, "context": 40} | SMALL[name] | dials).build().eval()
    assert isinstance(made, LanguageModel)
    return made


def read(made: AutoregressiveModel, ids: list[int]) -> State:
    with torch.no_grad():
        return made.step(torch.tensor([ids]), made.new_state(1, 20))[1]


def test_a_cache_serves_every_prefix_of_what_it_read() -> None:
    made = model()
    store = PrefixCache(made)
    store.store(LONG, read(made, LONG))
    for other, common in ((LONG, 12), ([*LONG[:7], 0, 0], 7), (LONG[:5], 5), ([*LONG, 7, 7], 12)):
        found = store.find(other)
        assert found is not None
        assert found.length == common
        assert found.state.lengths.tolist() == [common]
    assert store.find([3, 1, 4, 0, 0, 0]) is None  # three tokens are read faster than they are copied
    assert store.find([1, *LONG]) is None


def test_hidden_vectors_serve_what_they_read_as_a_whole() -> None:
    made = model("lstm_lm")
    store = PrefixCache(made)
    store.store(LONG, read(made, LONG))
    store.store(LONG[:6], read(made, LONG[:6]))
    assert len(store) == 2
    assert (found := store.find([*LONG, 7])) is not None and found.length == 12
    assert (found := store.find(LONG[:9])) is not None and found.length == 6
    assert store.find(LONG[:5]) is None


def test_a_longer_row_takes_the_place_of_its_prefixes() -> None:
    made = model()
    store = PrefixCache(made)
    for length in (4, 8, 12):  # the turns of a conversation
        store.store(LONG[:length], read(made, LONG[:length]))
    assert len(store) == 1
    store.store(LONG[:6], read(made, LONG[:6]))
    assert store.used_bytes == sum(entry.size for entry in store._entries.values())


def test_the_least_lately_used_go_first_when_the_bytes_run_out() -> None:
    made = model()
    size = read(made, LONG).resize(len(LONG)).nbytes()
    store = PrefixCache(made, budget=2 * size)
    first, second, third = ([n, *LONG[1:]] for n in (10, 11, 12))
    store.store(first, read(made, first))
    store.store(second, read(made, second))
    assert store.used_bytes == 2 * size
    assert store.find(first) is not None  # which is thus used later than the second
    store.store(third, read(made, third))
    assert store.used_bytes <= store.budget
    assert [store.find(row) is not None for row in (first, second, third)] == [True, False, True]
    store.clear()
    assert (len(store), store.used_bytes, store.find(first)) == (0, 0, None)


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    made = model()
    store = PrefixCache(made, budget=100)
    store.store(LONG, read(made, LONG))
    assert len(store) == 0
    assert [c.ids for c in complete(made, [Request(LONG)], GenerationConfig(max_tokens=3), prefix_cache=store)]


def test_a_kept_state_is_not_changed_by_those_that_go_on_from_it() -> None:
    made, config = model(), GenerationConfig(max_tokens=6)
    store = PrefixCache(made)
    wanted = complete(made, make_requests([LONG, [*LONG[:8], 0, 2]]), config)
    for _ in range(3):
        assert complete(made, [Request(LONG)], config, prefix_cache=store) == wanted[:1]
        assert complete(made, [Request([*LONG[:8], 0, 2])], config, prefix_cache=store) == wanted[1:]
    assert store.reused_tokens == 8 + 2 * (11 + 9)  # the last token of a prompt is always read


def test_a_prefix_that_a_batch_shares_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, tokens = model("lstm_lm"), [0]
    real = made.step

    def counted(inputs: torch.Tensor, state: State, lengths: torch.Tensor | None = None) -> object:
        tokens[0] += inputs.numel() if lengths is None else int(lengths.sum())
        return real(inputs, state, lengths)

    monkeypatch.setattr(made, "step", counted)
    rows = [[*LONG, n] for n in range(8)]
    fresh = complete(made, make_requests(rows), GenerationConfig(max_tokens=1))
    assert tokens == [8 * 13]
    tokens[0] = 0
    assert complete(made, make_requests(rows), GenerationConfig(max_tokens=1), prefix_cache=PrefixCache(made)) == fresh
    assert tokens == [12 + 8]


def test_shared_prefixes_are_found_once_and_by_source() -> None:
    rows = [(LONG, None), ([*LONG[:6], 0], None), ([*LONG[:6], 1], None), ([9, 9], None)]
    assert sorted(common_prefixes(rows)) == [(LONG[:6], None)]
    apart = [(LONG, [1]), (LONG, [2]), (LONG, [2])]
    assert common_prefixes(apart) == [(LONG[:-1], (2,))]
    assert common_prefixes([(LONG[:MIN_TOKENS], None)] * 2) == []


def test_another_cache_or_model_is_another_matter() -> None:
    made = model()
    store = PrefixCache(made)
    complete(made, [Request(LONG)], GenerationConfig(max_tokens=2), prefix_cache=store)
    assert store.find(LONG) is not None
    assert store.find(LONG, cache=Int8KVCacheConfig()) is None
    with pytest.raises(UsageError, match="got one of another"):
        complete(model(), [Request(LONG)], GenerationConfig(), prefix_cache=store)
    with pytest.raises(ConfigError, match="budget"):
        PrefixCache(made, budget=0)


def test_a_window_serves_its_whole_row_and_a_few_tokens_less() -> None:
    made = model("mistral", window=2)
    ids = [(7 * n) % 23 for n in range(38)]  # longer than the ring of 2 + 16 places
    store = PrefixCache(made)
    with torch.no_grad():
        store.store(ids, made.step(torch.tensor([ids]), made.new_state(1, 38))[1])
    assert (found := store.find(ids[:30])) is not None and found.length == 30
    assert store.find(ids[:10]) is None
