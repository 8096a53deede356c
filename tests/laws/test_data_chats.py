"""The data laws over conversations: only marked targets count, each once, and nothing before a conversation is seen.

The corpus is that of the other data laws, every token with an id of its own, with marks drawn at random.
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
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.test_data import (
    BATCH,
    CONFIGS,
    END,
    Planted,
    batches_are_rows_stacked,
    documents_apart,
    epoch,
    no_target_leaks,
    ranks_and_workers_change_nothing,
    resume_is_uninterrupted,
    row_choices,
    same_row,
    same_seed_same_rows,
)

from heddle.data.rows import Batch, Loader, MixedPlan, PackedRows, PairRows, RowPlan
from heddle.data.shards import Shards, ShardWriter

NAMES = [name for name, config in CONFIGS.items() if not isinstance(config, PairRows)]
PARTED = ["packed", "packed in order", "streams parted"]


@dataclass(frozen=True)
class Chats:
    """Conversations of unique tokens, who owns each token, and which of them count."""

    shards: Shards
    owner: np.ndarray
    counts: np.ndarray


def chats(folder: Path, sizes: list[int], seed: int = 0) -> Chats:
    edges = np.concatenate([[0], np.cumsum(sizes)])
    counts = np.random.default_rng(seed).random(sum(sizes) + 1) < 0.4
    counts[edges] = False  # neither `end` nor what a conversation begins with
    counts[edges[:-1] + 1] = False
    with ShardWriter(folder, vocab=sum(sizes) + 1, end=END, fingerprint="", shard_tokens=50) as writer:
        for start, stop in itertools.pairwise(edges):
            writer.add(np.arange(start, stop) + 1, bytes=1, words=1, counts=counts[start + 1 : stop + 1])
    owner = np.concatenate([[-1], np.repeat(np.arange(len(sizes)), sizes)])
    return Chats(Shards.open(folder), owner, counts)


def make(name: str, data: Chats, seed: int = 0) -> RowPlan:
    if name == "mixed":
        shares = {"packed": 2, "packed in order": 1}
        return MixedPlan([(CONFIGS[kind].build(data.shards, seed), share) for kind, share in shares.items()], seed)
    return CONFIGS[name].build(data.shards, seed)


@pytest.fixture(scope="module")
def data() -> Iterator[Chats]:
    sizes = np.random.default_rng(2).integers(1, 40, 30).tolist()
    with tempfile.TemporaryDirectory() as folder:
        yield chats(Path(folder) / "chats", [*sizes, 1, 12, 11, 24])


# --- the laws ---------------------------------------------------------------------------------------------------------


def each_marked_target_once(batches: Iterable[Batch], data: Chats) -> bool:
    """Compare all (input, target) pairs that count in an epoch with the marked ones of the corpus."""
    seen: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        counts = batch.weights > 0
        seen.update(zip(batch.inputs[counts].tolist(), batch.targets[counts].tolist(), strict=True))
    return seen == Counter((int(token) - 1, int(token)) for token in np.flatnonzero(data.counts))


def conversations_begin_with_themselves(batches: Iterable[Batch], owner: np.ndarray) -> bool:
    """See that an input from before a conversation shares a document number with nothing."""
    for batch in batches:
        assert batch.documents is not None
        for inputs, targets, documents in zip(
            *(t.numpy() for t in (batch.inputs, batch.targets, batch.documents)), strict=True
        ):
            leads = (owner[inputs] != owner[targets]) & (owner[targets] >= 0)
            if any((documents == documents[place]).sum() != 1 for place in np.flatnonzero(leads)):
                return False
    return True


# --- held over every kind ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "mixed"])
def test_same_seed_same_rows(name: str, data: Chats) -> None:
    assert same_seed_same_rows(lambda: make(name, data, seed=5))


@pytest.mark.parametrize("name", [*NAMES, "mixed"])
def test_rows_built_together_are_those_built_alone(name: str, data: Chats) -> None:
    plan = make(name, data)
    assert batches_are_rows_stacked(plan, row_choices(plan))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", [*NAMES, "mixed"])
def test_resume_is_uninterrupted(name: str, workers: int, data: Chats) -> None:
    plan = make(name, data)
    steps = 6 if workers else min(34, 2 * plan.rows_per_epoch // BATCH + 2)
    assert resume_is_uninterrupted(lambda start: Loader(plan, BATCH, start=start, workers=workers), steps)


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_each_marked_target_once_an_epoch(name: str, number: int, data: Chats) -> None:
    assert each_marked_target_once(epoch(make(name, data), number), data)


@pytest.mark.parametrize("name", [*NAMES, "mixed"])
def test_no_target_leaks(name: str, data: Chats) -> None:
    assert no_target_leaks(epoch(make(name, data)), data.owner)


@pytest.mark.parametrize("name", PARTED)
def test_conversations_are_apart(name: str, data: Chats) -> None:
    assert documents_apart(epoch(make(name, data)), data.owner)
    assert conversations_begin_with_themselves(epoch(make(name, data)), data.owner)


@pytest.mark.parametrize("name", ["packed", "streams parted", "mixed"])
def test_ranks_and_workers_change_nothing(name: str, data: Chats) -> None:
    plan = make(name, data)
    assert ranks_and_workers_change_nothing(
        lambda rank, world, workers: Loader(plan, BATCH, rank=rank, world=world, workers=workers), 8
    )


@pytest.mark.parametrize("name", NAMES)
def test_marks_change_weights_and_nothing_else_that_is_read(name: str, data: Chats, tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "plain", vocab=data.shards.vocab, end=END, fingerprint="") as writer:
        for i in range(data.shards.count):
            writer.add(data.shards.document(i)[:-1], bytes=1, words=1)
    plain, marked = (CONFIGS[name].build(shards, 3) for shards in (Shards.open(tmp_path / "plain"), data.shards))
    assert plain.rows_per_epoch == marked.rows_per_epoch
    for number in range(2 * plain.rows_per_epoch):
        one, two = plain.row(number), marked.row(number)
        assert np.array_equal(one.tokens, two.tokens)
        assert np.array_equal(one.weights * data.counts[one.tokens[1:]], two.weights)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=25), length=st.integers(1, 33), seed=st.integers(0, 2**31)
)
@settings(max_examples=10, deadline=None)
def test_the_laws_hold_for_any_conversations(sizes: list[int], length: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = chats(Path(folder) / "chats", sizes, seed)
        plan = PackedRows(length=min(length, data.shards.tokens)).build(data.shards, seed)
        for number in (0, 3):
            assert each_marked_target_once(epoch(plan, number), data)
        assert no_target_leaks(epoch(plan), data.owner)
        assert documents_apart(epoch(plan), data.owner)
        assert conversations_begin_with_themselves(epoch(plan), data.owner)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def changed(batches: Iterable[Batch], change: Callable[[Batch], Batch]) -> list[Batch]:
    return [change(batch) for batch in batches]


def test_counting_what_the_assistant_did_not_write_is_found(data: Chats) -> None:
    def all_count(batch: Batch) -> Batch:
        return dataclasses.replace(batch, weights=(batch.targets != END).float())

    def moved(batch: Batch) -> Batch:
        return dataclasses.replace(batch, weights=batch.weights.roll(1, 1))

    for change in (all_count, moved):
        assert not each_marked_target_once(changed(epoch(make("packed", data)), change), data)


def test_a_beginning_that_sees_what_leads_into_it_is_found(data: Chats) -> None:
    def joined(batch: Batch) -> Batch:
        assert batch.documents is not None
        return dataclasses.replace(batch, documents=batch.documents // 2)

    assert not conversations_begin_with_themselves(changed(epoch(make("packed", data)), joined), data.owner)


def test_a_lost_row_is_found(data: Chats) -> None:
    plan = make("packed", data)
    lost = Planted(plan, lambda number: max(1, number))
    assert not same_row(lost.row(0), plan.row(0)) and not each_marked_target_once(epoch(lost), data)
