"""The data laws, each written once and held over every kind of rows and the mixture; planted bugs show that they bite.

The corpus gives every token an id of its own, so that a lost, repeated or leaked token is seen for certain.
"""

import dataclasses
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.core import kinds
from heddle.data.rows import (
    Batch,
    Loader,
    MixedPlan,
    PackedRows,
    PairRows,
    Row,
    RowPlan,
    RowsConfig,
    StreamRows,
    collate,
    packed,
)
from heddle.data.rows.pairs import PairPlan
from heddle.data.shards import Shards, ShardWriter

END = 0
LENGTH, BATCH = 12, 4


@dataclass(frozen=True)
class Corpus:
    """Documents of unique tokens, 1 and up, and for each token the document that owns it (-1 for `end`)."""

    shards: Shards
    source: Shards
    owner: np.ndarray


def corpus(folder: Path, sizes: list[int]) -> Corpus:
    total = sum(sizes)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    for name in ("target", "source"):
        with ShardWriter(folder / name, vocab=total + 1, end=END, fingerprint="", shard_tokens=50) as writer:
            for start, stop in itertools.pairwise(edges):
                writer.add(np.arange(start, stop) + 1, bytes=1, words=1)
    owner = np.concatenate([[-1], np.repeat(np.arange(len(sizes)), sizes)])
    return Corpus(Shards.open(folder / "target"), Shards.open(folder / "source"), owner)


CONFIGS: dict[str, RowsConfig] = {
    "packed": PackedRows(length=LENGTH),
    "packed joined": PackedRows(length=LENGTH, boundaries="stream"),
    "packed in order": PackedRows(length=LENGTH, shuffle=False),
    "streams": StreamRows(length=LENGTH, lanes=BATCH),
    "streams parted": StreamRows(length=LENGTH, lanes=BATCH, boundaries="reset", shuffle=True),
    "pairs": PairRows(length=64, source_length=64, batch=BATCH),
}
KINDS = [*CONFIGS, "mixed"]


def make(name: str, data: Corpus, seed: int = 0) -> RowPlan:
    if name == "mixed":
        shares = {"packed": 2, "packed in order": 1}
        return MixedPlan([(CONFIGS[kind].build(data.shards, seed), share) for kind, share in shares.items()], seed)
    config = CONFIGS[name]
    return config.build(data.shards, seed, data.source if isinstance(config, PairRows) else None)


@pytest.fixture(scope="module")
def data() -> Iterator[Corpus]:
    sizes = np.random.default_rng(1).integers(0, 40, 30).tolist()
    with tempfile.TemporaryDirectory() as folder:
        yield corpus(Path(folder), [*sizes, 1, 12, 11, 24])


def test_every_kind_is_held_to_the_laws() -> None:
    own = {"sentence_pairs", "examples", "preferences", "media", "media_examples"}  # tests/data/test_sentence_pairs.py,
    # test_examples.py, test_media_rows.py and test_pictures.py, tests/objectives/test_preference.py
    assert {config.kind for config in CONFIGS.values()} | own == set(kinds(RowsConfig))


# --- the laws ---------------------------------------------------------------------------------------------------------


def same_row(one: Row, other: Row) -> bool:
    pairs = zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a is b or a == b for a, b in pairs)


def same_batch(one: Batch, other: Batch) -> bool:
    for field in dataclasses.fields(Batch):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if (a is None) != (b is None) or (a is not None and not torch.equal(a, b)):
            return False
    return True


def same_seed_same_rows(build: Callable[[], RowPlan]) -> bool:
    one, other = build(), build()
    numbers = range(2 * one.rows_per_epoch + 3)
    rows = [one.row(g) for g in numbers]
    return all(same_row(rows[g], other.row(g)) for g in reversed(numbers))


def resume_is_uninterrupted(load: Callable[[int], Loader], steps: int) -> bool:
    whole = take(load(0), steps)
    for stop in range(steps):
        first = load(0)
        before = take(first, stop)
        resumed = load(first.consumed)
        if not all(same_batch(a, b) for a, b in zip(before + take(resumed, steps - stop), whole, strict=True)):
            return False
    return True


def epoch(plan: RowPlan, number: int = 0) -> Iterator[Batch]:
    first = number * plan.rows_per_epoch
    return (collate([plan.row(g)], [g]) for g in range(first, first + plan.rows_per_epoch))


def each_target_once(batches: Iterable[Batch], shards: Shards) -> bool:
    """Compare all (input, target) pairs that count in an epoch with those of the corpus."""
    seen: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        counts = batch.weights > 0
        seen.update(zip(batch.inputs[counts].tolist(), batch.targets[counts].tolist(), strict=True))
    wanted: Counter[tuple[int, int]] = Counter()
    for document in (shards.document(i).tolist() for i in range(shards.count)):
        wanted.update(zip([END, *document], document, strict=False))
    return seen == wanted


def no_target_leaks(batches: Iterable[Batch], owner: np.ndarray) -> bool:
    """See that no target stands among the inputs up to it, and that each input is the token before its target."""
    for batch in batches:
        for inputs, targets, weights in zip(
            *(t.numpy() for t in (batch.inputs, batch.targets, batch.weights)), strict=True
        ):
            for i in np.flatnonzero((weights > 0) & (targets != END)):
                target = int(targets[i])
                first = target == 1 or owner[target - 1] != owner[target]
                if target in inputs[: i + 1] or inputs[i] != (END if first else target - 1):
                    return False
    return True


def documents_apart(batches: Iterable[Batch], owner: np.ndarray) -> bool:
    """See that one number is one document, that places count up from 0 in it, and that padding stands by itself."""
    for batch in batches:
        if batch.documents is None or batch.positions is None:
            return False
        fields = (batch.targets, batch.weights, batch.documents, batch.positions)
        for targets, weights, documents, positions in zip(*(t.numpy() for t in fields), strict=True):
            for number in range(int(documents.max()) + 1):
                here = np.flatnonzero(documents == number)
                if not len(here) or not np.array_equal(positions[here], here - here[0]) or np.any(np.diff(here) != 1):
                    return False
                owners = set(owner[targets[here]].tolist()) - {-1}
                ends = int((targets[here] == END).sum())
                padding = ends == len(here) and not weights[here].any()
                if not padding and (len(owners) > 1 or ends > 1 or (ends and targets[here[-1]] != END)):
                    return False
    return True


def take(loader: Loader, steps: int) -> list[Batch]:
    return [batch for _, batch in zip(range(steps), loader, strict=False)]


def ranks_and_workers_change_nothing(load: Callable[[int, int, int], Loader], steps: int) -> bool:
    whole = take(load(0, 1, 0), steps)
    for workers in (0, 1, 2):
        for world in (1, 2, 4):
            ranks = [take(load(rank, world, workers), steps) for rank in range(world)]
            for step, wanted in enumerate(whole):
                share = BATCH // world
                for rank in range(world):
                    if not same_batch(ranks[rank][step], wanted.slice(rank * share, (rank + 1) * share)):
                        return False
    return True


# --- held over every kind ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_same_seed_same_rows(name: str, data: Corpus) -> None:
    assert same_seed_same_rows(lambda: make(name, data, seed=5))


@pytest.mark.parametrize("name", ["packed", "packed joined", "streams parted", "pairs", "mixed"])
def test_another_seed_is_another_order(name: str, data: Corpus) -> None:
    one, other = make(name, data, seed=0), make(name, data, seed=1)
    assert not all(same_row(one.row(g), other.row(g)) for g in range(one.rows_per_epoch))


@pytest.mark.parametrize("name", ["packed", "packed joined", "streams parted", "pairs"])
def test_another_epoch_is_another_order(name: str, data: Corpus) -> None:
    plan = make(name, data)
    rows = plan.rows_per_epoch
    assert not all(same_row(plan.row(g), plan.row(g + rows)) for g in range(rows))


def batches_are_rows_stacked(plan: RowPlan, choices: Iterable[list[int]]) -> bool:
    return all(same_batch(plan.build_batch(some), collate([plan.row(g) for g in some], some)) for some in choices)


def row_choices(plan: RowPlan) -> list[list[int]]:
    """Return runs of rows, some over the edge of an epoch, and rows in any order; of pairs, rows of one shape."""
    rows, size = plan.rows_per_epoch, plan.batch or BATCH
    runs = [list(range(first, first + size)) for first in range(0, 2 * rows + size, size)]
    if isinstance(plan, PairPlan):
        return runs
    draw = np.random.default_rng(0)
    return [*runs, *(list(range(rows - k, rows + 3)) for k in (1, 2)), *draw.integers(0, 3 * rows, (5, 7)).tolist()]


@pytest.mark.parametrize("name", KINDS)
def test_rows_built_together_are_those_built_alone(name: str, data: Corpus) -> None:
    plan = make(name, data)
    assert batches_are_rows_stacked(plan, row_choices(plan))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", KINDS)
def test_resume_is_uninterrupted(name: str, workers: int, data: Corpus) -> None:
    plan = make(name, data)
    steps = 2 * plan.rows_per_epoch // BATCH + 2 if not workers else 6  # past the edges of two epochs
    steps = min(steps, 34)
    assert resume_is_uninterrupted(lambda start: Loader(plan, BATCH, start=start, workers=workers), steps)


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_target_once_an_epoch(name: str, number: int, data: Corpus) -> None:
    assert each_target_once(epoch(make(name, data), number), data.shards)


def test_each_source_of_a_mixture_keeps_its_epochs(data: Corpus) -> None:
    mixed = make("mixed", data)
    assert isinstance(mixed, MixedPlan)
    plans = [make(name, data) for name in ("packed", "packed in order")]
    turns = [0, 0]
    for number in range(1500):
        chosen, inner = mixed.place(number)
        assert inner == turns[chosen]
        assert same_row(mixed.row(number), plans[chosen].row(inner))
        turns[chosen] += 1


@pytest.mark.parametrize("name", KINDS)
def test_no_target_leaks(name: str, data: Corpus) -> None:
    assert no_target_leaks(epoch(make(name, data)), data.owner)


@pytest.mark.parametrize("name", ["packed", "packed in order", "streams parted"])
def test_documents_are_apart(name: str, data: Corpus) -> None:
    assert documents_apart(epoch(make(name, data)), data.owner)


@pytest.mark.parametrize("name", KINDS)
def test_ranks_and_workers_change_nothing(name: str, data: Corpus) -> None:
    plan = make(name, data)
    assert ranks_and_workers_change_nothing(
        lambda rank, world, workers: Loader(plan, BATCH, rank=rank, world=world, workers=workers), 8
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_one_pass_meets_each_target_once(name: str, world: int, workers: int, data: Corpus) -> None:
    plan = make(name, data)
    loaders = [Loader(plan, BATCH, rank=rank, world=world, workers=workers) for rank in range(world)]
    passes = [list(loader.once()) for loader in loaders]
    assert each_target_once(itertools.chain(*passes), data.shards)
    assert sorted(n for batches in passes for b in batches for n in b.rows.tolist()) == list(range(plan.rows_per_epoch))
    assert [loader.consumed for loader in loaders] == [0] * world


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=25),
    length=st.integers(1, 33),
    lanes=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_the_laws_hold_for_any_corpus(sizes: list[int], length: int, lanes: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = corpus(Path(folder), sizes)
        tokens = data.shards.tokens
        length, lanes = min(length, tokens), min(lanes, tokens)
        configs = [
            PackedRows(length=length),
            StreamRows(length=max(1, min(length, tokens // lanes)), lanes=lanes, boundaries="reset", shuffle=True),
            PairRows(length=31, source_length=31, batch=lanes),
        ]
        for config in configs:
            plan = config.build(data.shards, seed, data.source if isinstance(config, PairRows) else None)
            for number in (0, 3):
                assert each_target_once(epoch(plan, number), data.shards)
            assert no_target_leaks(epoch(plan), data.owner)
            joined = isinstance(config, PairRows) or config.boundaries == "stream"
            assert joined or documents_apart(epoch(plan), data.owner)


# --- planted bugs -----------------------------------------------------------------------------------------------------


class Planted(RowPlan):
    """A plan that returns another row than the requested one."""

    def __init__(self, plan: RowPlan, number: Callable[[int], int]) -> None:
        self.plan, self.number = plan, number
        self.rows_per_epoch, self.length, self.batch = plan.rows_per_epoch, plan.length, plan.batch

    def row(self, number: int) -> Row:
        return self.plan.row(self.number(number))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_lost_and_a_repeated_sample_are_found(name: str, data: Corpus) -> None:
    batches = [batch for batch in epoch(make(name, data)) if batch.tokens]
    assert each_target_once(batches, data.shards)
    assert not each_target_once(batches[1:], data.shards)
    assert not each_target_once([*batches, batches[2]], data.shards)
    assert not each_target_once([batches[0], *batches[:1], *batches[2:]], data.shards)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_target_left_out_is_found(name: str, data: Corpus) -> None:
    batches = list(epoch(make(name, data)))
    at = next(batch for batch in batches if batch.weights[0, 0] > 0)
    at.weights[0, 0] = 0
    assert not each_target_once(batches, data.shards)


@pytest.mark.parametrize("name", CONFIGS)
def test_counted_padding_or_context_is_found(name: str, data: Corpus) -> None:
    batches = list(epoch(make(name, data)))
    at = next(batch for batch in batches if not batch.weights.all())
    at.weights[at.weights == 0] = 1
    assert not each_target_once(batches, data.shards)


@pytest.mark.parametrize("name", KINDS)
def test_a_target_leak_is_found(name: str, data: Corpus) -> None:
    batches = list(epoch(make(name, data)))
    unshifted = [dataclasses.replace(batch, inputs=batch.targets) for batch in batches]
    assert not no_target_leaks(unshifted, data.owner)
    ahead = [dataclasses.replace(batch, targets=batch.targets.roll(-1, 1)) for batch in batches]
    assert not no_target_leaks(ahead, data.owner)


def test_joined_documents_are_found(data: Corpus) -> None:
    batches = list(epoch(make("packed", data)))
    joined = [dataclasses.replace(b, documents=torch.zeros_like(b.inputs)) for b in batches]
    assert not documents_apart(joined, data.owner)
    unplaced = [dataclasses.replace(b, positions=torch.arange(LENGTH)[None]) for b in batches]
    assert not documents_apart(unplaced, data.owner)


@pytest.mark.parametrize("name", KINDS)
def test_a_draw_without_key_is_found(name: str, data: Corpus) -> None:
    unkeyed = np.random.default_rng(0)
    planted = Planted(make(name, data), lambda g: g + int(unkeyed.integers(2)))
    assert not same_seed_same_rows(lambda: planted)


@pytest.mark.parametrize("name", KINDS)
def test_a_resume_that_skips_is_found(name: str, data: Corpus) -> None:
    plan = make(name, data)
    assert not resume_is_uninterrupted(lambda start: Loader(plan, BATCH, start=start + BATCH * (start > 0)), 4)


def test_ranks_that_change_the_order_are_found(data: Corpus) -> None:
    plan = make("packed", data)

    def strided(rank: int, world: int, workers: int) -> Loader:
        return Loader(Planted(plan, lambda g: g + rank), BATCH, rank=rank, world=world, workers=workers)

    assert not ranks_and_workers_change_nothing(strided, 3)


def test_rows_built_together_that_differ_are_noticed(data: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make("packed", data)
    choices = row_choices(plan)

    def without_padding(begun: tuple[np.ndarray, ...], used: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        return document_ids(begun, np.where(used < length, length, used) if len(used) > 1 else used, length)

    document_ids = packed._document_ids
    monkeypatch.setattr(packed, "_document_ids", without_padding)
    assert not batches_are_rows_stacked(plan, choices)
