"""kNN-LM: the datastore, its search, and the mixture (Khandelwal et al. 2020)."""

import importlib.util
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import heddle
from heddle.core import ConfigError, DamageError, DataError, HeddleError, UsageError
from heddle.core.system import lock_folder
from heddle.decoding import generation_config, knn
from heddle.decoding.generation import generate
from heddle.decoding.knn import build as building
from heddle.decoding.knn import search as searching
from heddle.decoding.runtime import CaptureMode
from heddle.decoding.scoring import ScoringWindows, hidden_sliding_window, nll_sliding_window
from heddle.models.networks import LanguageModel
from heddle.text.tokenizers import CharacterTokenizer

VOCAB = 40
WINDOWS = ScoringWindows(length=16, stride=8)
CPU = torch.device("cpu")
needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss-cpu")


def small(name: str = "first", seed: int = 0) -> LanguageModel:
    sizes = {"layers": 2, "width": 16, "vocab": VOCAB, "context": 16}
    more = {} if name == "lstm_lm" else {"heads": 2}
    more |= {"kv_heads": 1, "hidden": 16} if name == "mixtral-8x7b" else {}
    torch.manual_seed(seed)
    model = heddle.build(name, **sizes, **more)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape))
    assert isinstance(model, LanguageModel)
    return model.eval()


def texts(count: int = 6) -> list[NDArray[np.int64]]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, VOCAB, size=n) for n in ([3, 30, 61, 1, 17, 40] * count)[:count]]


def options(**more: object) -> knn.BuildOptions:
    fields = {"tokenizer": "t", "start": (0,), "windows": WINDOWS, "precision": "float32", "group": 32} | more
    return knn.BuildOptions(**fields)  # type: ignore[arg-type]


def built(folder: Path, model: LanguageModel, **more: object) -> knn.Datastore:
    return knn.build_datastore(model, texts(), folder, options(**more))


def mixed(model: LanguageModel, store: knn.Datastore, **fields: float) -> LanguageModel:
    return knn.with_knn(model, store, knn.ExactSearch(store.keys, CPU), knn.KnnConfig(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["first", "lstm_lm", "mixtral-8x7b"])
def test_a_datastore_has_each_state_with_the_token_after_it(name: str, tmp_path: Path) -> None:
    model = small(name)
    store = built(tmp_path / "m", model)
    hidden = torch.cat(list(hidden_sliding_window(model, texts(), WINDOWS, 0)))
    assert store.values.tolist() == np.concatenate(texts()).tolist()
    assert torch.equal(torch.from_numpy(np.array(store.keys)), hidden)
    losses = torch.cat(list(nll_sliding_window(model, texts(), WINDOWS, 0)))
    targets = torch.from_numpy(np.array(store.values)).long()
    torch.testing.assert_close(model.head.nll(hidden, targets), losses)
    spread = (hidden - hidden.mean(0)).square().sum(1).mean()
    assert store.record.spread == pytest.approx(float(spread), rel=1e-5)


@pytest.mark.parametrize("scores", [1 << 25, 300])
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_exact_search_equals_brute_force(precision: str, scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SCORES", scores)
    draw = np.random.default_rng(1)
    keys = draw.normal(size=(500, 12)).astype(precision)
    keys[100:120] = keys[7]  # ties, by their order
    queries = torch.from_numpy(np.concatenate([draw.normal(size=(29, 12)), keys[7:8]])).float()
    near = knn.ExactSearch(keys, CPU).nearest(queries, 25)
    every = ((queries.double()[:, None] - torch.from_numpy(keys).double()) ** 2).sum(-1)
    order = every.sort(dim=1, stable=True)
    assert torch.equal(near.entries, order.indices[:, :25])
    torch.testing.assert_close(near.distances, order.values[:, :25], rtol=1e-12, atol=1e-12)
    assert near.entries[-1, :21].tolist() == [7, *range(100, 120)]
    few = knn.ExactSearch(keys[:3], CPU).nearest(queries, 25)
    assert few.entries.shape == (30, 3)


def test_a_query_has_the_same_neighbours_alone_and_in_a_batch() -> None:
    keys = np.random.default_rng(1).normal(size=(700, 8)).astype(np.float16)
    queries = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    search = knn.ExactSearch(keys, CPU)
    together = search.nearest(queries, 9)
    for row in range(50):
        alone = search.nearest(queries[row : row + 1], 9)
        assert torch.equal(alone.entries[0], together.entries[row])
        assert torch.equal(alone.distances[0], together.distances[row])


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_the_head_is_the_mixture_of_the_paper(name: str, tmp_path: Path) -> None:
    model = small(name)
    store = built(tmp_path / "m", model)
    both = mixed(model, store, weight=0.3, k=5, temperature=2.0)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        hidden, found = model(ids)[0], both.logits(ids)[0].exp().double()
        own = model.logits(ids)[0].double().softmax(-1)
    keys = torch.from_numpy(np.array(store.keys)).double()
    for at in range(4):
        distances = (keys - hidden[at].double()).square().sum(1)
        nearest = distances.argsort(stable=True)[:5]
        shares = torch.exp(-distances[nearest] / 2.0)
        want = 0.7 * own[at]
        for entry, share in zip(nearest, shares / shares.sum(), strict=True):
            want[int(store.values[entry])] += 0.3 * share
        torch.testing.assert_close(found[at], want, rtol=1e-5, atol=1e-8)
        losses = both.head.nll(hidden[at].expand(VOCAB, -1), torch.arange(VOCAB))
        torch.testing.assert_close(losses.double().exp(), 1 / want, rtol=1e-5, atol=0)
    assert torch.equal(model.logits(ids), small(name).logits(ids))  # the model itself is as it was


def test_weight_zero_is_the_model(tmp_path: Path) -> None:
    model = small()
    both = mixed(model, built(tmp_path / "m", model), weight=0.0)
    for own, other in zip(*(nll_sliding_window(m, texts(), WINDOWS, 0) for m in (model, both)), strict=True):
        torch.testing.assert_close(own, other)


def test_a_memory_of_the_text_itself_lowers_its_loss(tmp_path: Path) -> None:
    model = small()
    both = mixed(model, built(tmp_path / "m", model), weight=0.9, k=4)
    own, other = (torch.cat(list(nll_sliding_window(m, texts(), WINDOWS, 0))).mean() for m in (model, both))
    assert other < 0.5 * own


def test_texts_are_the_same_alone_and_batched_and_by_beams_of_one(tmp_path: Path) -> None:
    model = small()
    both = mixed(model, built(tmp_path / "m", model), weight=0.5, k=8)
    prompts, how = [[1, 2, 3], [4], [5, 6, 7, 8]], generation_config({"max_tokens": 6})
    together = generate(both, prompts, how)
    assert together == [generate(both, [prompt], how)[0] for prompt in prompts]
    sampled = generation_config({"max_tokens": 6, "temperature": 1.0, "seed": 3})
    assert generate(both, prompts, sampled) == [generate(both, [prompt], sampled)[0] for prompt in prompts]
    assert len(generate(both, prompts, generation_config({"max_tokens": 6, "beams": 3}))) == 3


def test_steps_with_a_memory_are_not_captured(tmp_path: Path) -> None:
    model = small()
    both = mixed(model, built(tmp_path / "m", model))
    assert model.can_capture() and not both.can_capture()
    assert CaptureMode.CAPTURED is not None
    with pytest.raises(UsageError, match="compile: want auto or off with a memory"):
        generate(both, [[1]], generation_config({"compile": "on"}))


def test_a_model_has_one_memory(tmp_path: Path) -> None:
    model = small()
    store = built(tmp_path / "m", model)
    with pytest.raises(UsageError, match="has one already"):
        mixed(mixed(model, store), store)


@pytest.mark.parametrize("more", [{"seed": 1}, {"name": "lstm_lm"}])
def test_the_memory_of_another_model_is_refused(more: dict[str, object], tmp_path: Path) -> None:
    store = built(tmp_path / "m", small())
    with pytest.raises(ConfigError, match=r"memory: .* was built by another model"):
        mixed(small(**more), store)  # type: ignore[arg-type]


def test_the_hash_is_that_of_the_same_weights_in_any_dtype() -> None:
    model = small()
    half = small().bfloat16()
    assert knn.weights_hash(model) == knn.weights_hash(half) == knn.weights_hash(small())
    assert knn.weights_hash(model) != knn.weights_hash(small(seed=1))


# --- building ---------------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """A build ends in the middle."""


def cut(documents: list[NDArray[np.int64]], after: int) -> Iterator[NDArray[np.int64]]:
    yield from documents[:after]
    raise Interrupted


@pytest.mark.parametrize("after", [0, 2, 3, 5])
def test_an_interrupted_build_continues_to_the_same_bytes(after: int, tmp_path: Path) -> None:
    model = small()
    whole, broken = built(tmp_path / "whole", model), tmp_path / "broken"
    with pytest.raises(Interrupted):
        knn.build_datastore(model, cut(texts(), after), broken, options())
    with pytest.raises(DataError, match="not finished; the same heddle memory build continues it"):
        knn.open_datastore(broken)
    with (broken / "keys.bin").open("ab") as file:  # a group that was cut off while it was written
        file.write(b"half")
    again = built(broken, model)
    assert (again.keys == whole.keys).all() and (again.values == whole.values).all()
    assert again.record == whole.record


@pytest.mark.parametrize("name", ["first", "mixtral-8x7b"])  # tied, and with a head of its own
def test_a_model_with_a_memory_is_not_saved(name: str, tmp_path: Path) -> None:
    model = small(name)
    both = mixed(model, built(tmp_path / "m", model))
    lm = heddle.LM(both, CharacterTokenizer().train(["ab"]))
    with pytest.raises(UsageError, match="save: want a model without a memory"):
        lm.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"precision": "float16"}, "begun with another precision: want float32, got float16"),
        ({"tokenizer": "u"}, "begun with another tokenizer: want t, got u"),
        ({"windows": ScoringWindows(length=8, stride=4)}, "begun with another window: want 16, got 8"),
        ({"most": 7}, "begun with at most None entries, not 7"),
    ],
)
def test_an_interrupted_build_of_another_kind_is_refused(more: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        knn.build_datastore(small(), cut(texts(), 3), tmp_path / "m", options())
    with pytest.raises(UsageError, match=message):
        built(tmp_path / "m", small(), **more)


def test_an_interrupted_build_of_another_text_or_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        knn.build_datastore(small(), cut(texts(), 3), tmp_path / "m", options())
    with pytest.raises(DataError, match="begun with another text"):
        knn.build_datastore(small(), texts()[1:], tmp_path / "m", options())
    with pytest.raises(UsageError, match="begun with another model"):
        built(tmp_path / "m", small(seed=1))


def test_a_limited_build_has_so_many_entries(tmp_path: Path) -> None:
    whole = built(tmp_path / "whole", small())
    some = built(tmp_path / "some", small(), most=50)
    assert len(some) == 50 and (some.values == whole.values[:50]).all()


def test_a_finished_or_a_foreign_folder_is_not_overwritten(tmp_path: Path) -> None:
    built(tmp_path / "m", small())
    with pytest.raises(UsageError, match="holds a finished datastore"):
        built(tmp_path / "m", small())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept.txt").write_text("mine")
    with pytest.raises(UsageError, match="want a free path"):
        built(tmp_path / "other", small())
    with pytest.raises(DataError, match="want one token of text or more"):
        knn.build_datastore(small(), [], tmp_path / "none", options())


def test_what_another_process_finished_before_the_lock_is_not_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished_first(folder: Path, wait: bool) -> AbstractContextManager[bool]:
        monkeypatch.setattr(building, "lock_folder", lock_folder)
        built(folder, small())
        return lock_folder(folder, wait)

    monkeypatch.setattr(building, "lock_folder", finished_first)
    with pytest.raises(UsageError, match="holds a finished datastore"):
        built(tmp_path / "m", small())
    assert len(knn.open_datastore(tmp_path / "m")) == sum(map(len, texts()))


def test_damage_is_found(tmp_path: Path) -> None:
    for number, (name, harm) in enumerate(
        (
            ("keys.bin", "flip"),
            ("values.bin", "flip"),
            ("memory.json", "flip"),
            ("keys.bin", "cut"),
            ("values.bin", "no"),
        )
    ):
        folder = tmp_path / str(number)
        built(folder, small())
        path = folder / name
        data = bytearray(path.read_bytes())
        if harm == "no":
            path.unlink()
        elif harm == "cut":
            path.write_bytes(data[:-2])
        else:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        with pytest.raises(DamageError):
            knn.open_datastore(folder)
    with pytest.raises(DataError, match=r"found no memory\.json"):
        knn.open_datastore(tmp_path)


def test_keys_beyond_float16_are_refused(tmp_path: Path) -> None:
    model = small()
    model.norm.weight.data *= 1e6
    with pytest.raises(ConfigError, match="precision: want float32"):
        built(tmp_path / "m", model, precision="float16")


@pytest.mark.parametrize(
    "fields", [{"weight": 1.0}, {"weight": -0.1}, {"k": 0}, {"temperature": 0.0}, {"temperature": float("nan")}]
)
def test_a_mixture_out_of_range_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(HeddleError):
        knn.KnnConfig(**fields)  # type: ignore[arg-type]


# --- an index of Faiss ------------------------------------------------------------------------------------------------


@needs_faiss
def test_an_index_finds_what_its_recall_says(tmp_path: Path) -> None:
    model = small()
    draw = np.random.default_rng(3)
    documents = [draw.integers(0, VOCAB, size=1500)]
    store = knn.build_datastore(model, documents, tmp_path / "m", options(precision="float16"))
    flat = knn.build_index(store, knn.KnnIndexConfig(factory="Flat", k=8))
    assert flat.recall == 1.0
    exact = knn.ExactSearch(store.keys, CPU).nearest(torch.from_numpy(np.array(store.keys[:50])).float(), 8)
    found = knn.open_index(store, CPU).nearest(torch.from_numpy(np.array(store.keys[:50])).float(), 8)
    assert torch.equal(exact.entries, found.entries) and torch.equal(exact.distances, found.distances)
    lists = knn.build_index(store, knn.KnnIndexConfig(factory="IVF16,Flat", probes=1, k=8))
    every = knn.build_index(store, knn.KnnIndexConfig(factory="IVF16,Flat", probes=16, k=8))
    assert lists.recall < every.recall == 1.0
    both = knn.with_knn(model, store, knn.open_index(store, CPU), knn.KnnConfig(k=4))
    assert torch.isfinite(torch.cat(list(nll_sliding_window(both, texts(), WINDOWS, 0)))).all()
    with pytest.raises(ConfigError, match="factory: want an index that Faiss can train"):
        knn.build_index(store, knn.KnnIndexConfig(factory="nonsense"))


@needs_faiss
@pytest.mark.parametrize("entries", [1, 3, 10])
def test_an_index_of_few_keys_has_no_more_lists_than_keys(entries: int, tmp_path: Path) -> None:
    store = built(tmp_path / "m", small(), most=entries)
    assert knn.build_index(store).factory == f"IVF{min(entries, 4 * int(entries**0.5))},Flat"


@needs_faiss
def test_an_index_that_is_damaged_or_of_other_keys_is_refused(tmp_path: Path) -> None:
    store = built(tmp_path / "m", small())
    with pytest.raises(UsageError, match="has no index"):
        knn.open_index(store, CPU)
    knn.build_index(store, knn.KnnIndexConfig(factory="Flat"))
    other = built(tmp_path / "n", small(seed=2))
    for name in ("index.faiss", "index.json"):
        (tmp_path / "n" / name).write_bytes((tmp_path / "m" / name).read_bytes())
    with pytest.raises(DamageError, match="index of other keys"):
        knn.open_index(other, CPU)
    path = tmp_path / "m" / "index.json"
    path.write_text(path.read_text().replace('"recall": 1.0', '"recall": 0.5'))
    with pytest.raises(DamageError, match="checksum mismatch"):
        knn.open_index(store, CPU)


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    built(tmp_path / "m", small())
    plain = json.loads((tmp_path / "m" / "memory.json").read_text())
    assert plain["entries"] == sum(map(len, texts())) and plain["window"] == 16
