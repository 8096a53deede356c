"""Sentence pairs: texts that follow, of other documents or swapped, by a fair coin; where they are cut; their laws."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from heddle.core import ConfigError, DataError
from heddle.data.rows import Loader, SentencePairBatch, SentencePairRows, collate
from heddle.data.rows.sentence_pairs import SentenceCorpus, SentencePairPlan, SentencePairRow
from heddle.data.shards import Shards, ShardWriter

END, DOT, LENGTH = 0, 1, 24
CLS, SEP = 2, 3


def corpus(folder: Path, sizes: list[int]) -> SentenceCorpus:
    """Return documents of unique ids from 4 on, every seventh token of which is a full stop."""
    total = sum(sizes) + 4
    edges = np.concatenate([[4], 4 + np.cumsum(sizes)])
    with ShardWriter(folder, vocab=total, end=END, fingerprint="", shard_tokens=500) as writer:
        for start, stop in itertools.pairwise(edges):
            tokens = np.arange(start, stop)
            writer.add(np.where(np.arange(len(tokens)) % 7 == 6, DOT, tokens), bytes=1, words=1)
    return SentenceCorpus(Shards.open(folder), np.arange(total) == DOT, (CLS, SEP))


@pytest.fixture
def data(tmp_path: Path) -> SentenceCorpus:
    return corpus(tmp_path / "shards", np.random.default_rng(0).integers(0, 120, 60).tolist())


def texts(row: SentencePairRow) -> tuple[list[int], list[int]]:
    """Return both texts of a row, after a look at its special tokens."""
    tokens, second, real = row.tokens.tolist(), row.second, row.real
    assert tokens[0] == CLS and tokens[second - 1] == SEP and tokens[real - 1] == SEP
    assert set(tokens[real:]) <= {SEP} and row.weights.sum() == real
    return tokens[1 : second - 1], tokens[second : real - 1]


def follows(first: list[int], second: list[int], data: SentenceCorpus) -> bool:
    """Tell whether the second text comes right after the first; full stops are the seventh of each document."""
    stored = np.concatenate([data.read(*each) for each in data.documents])
    known = {int(token): place for place, token in enumerate(stored) if token != DOT}
    places = [known[token] - at for text in (first, second) for at, token in enumerate(text) if token != DOT]
    anchors = [next((known[t] - at for at, t in enumerate(text) if t != DOT), None) for text in (first, second)]
    if None in anchors or not places:
        return True  # a full stop alone can be anybody's
    return anchors[1] == anchors[0] + len(first)


@pytest.mark.parametrize("second", ["random", "swapped"])
def test_the_second_text_follows_half_of_the_time(second: str, data: SentenceCorpus) -> None:
    plan = SentencePairPlan(SentencePairRows(length=LENGTH, second=second), data, 5)  # type: ignore[arg-type]
    owners = {int(t): n for n, each in enumerate(data.documents) for t in data.read(*each) if t != DOT}
    labels = []
    for number in range(4 * plan.rows_per_epoch):
        row = plan.row(number)
        first, later = texts(row)
        assert first and later and len(first) + len(later) + 3 <= LENGTH
        labels.append(row.label)
        if row.label == 0:
            assert follows(first, later, data)
            continue
        if second == "swapped":
            assert follows(later, first, data)
        else:
            sides = [{owners[token] for token in text if token != DOT} for text in (first, later)]
            assert not sides[0] & sides[1], "a random text is never of the same document"
    count = len(labels)
    assert abs(np.mean(labels) - 0.5) < 4 * 0.5 / np.sqrt(count), "a fair coin, for short documents too"


def test_pieces_end_with_sentences_and_some_are_short(data: SentenceCorpus) -> None:
    plan = SentencePairPlan(SentencePairRows(length=64, short=0.3), data, 0)
    rows = [plan.row(number) for number in range(plan.rows_per_epoch)]
    stops = [texts(row)[0][-1] == DOT for row in rows]
    assert np.mean(stops) > 0.7, "the first text ends a sentence, unless there is none"
    sizes = [row.real for row in rows if row.label == 0]
    assert min(sizes) < 24 and max(sizes) <= 64
    whole = SentencePairPlan(SentencePairRows(length=64, short=0.0), data, 0)
    assert np.mean([whole.row(n).real for n in range(whole.rows_per_epoch)]) > np.mean([row.real for row in rows])


def test_an_epoch_shows_every_token(data: SentenceCorpus) -> None:
    for second in ("random", "swapped"):
        config = SentencePairRows(length=LENGTH, second=second, shuffle=False)  # type: ignore[arg-type]
        plan = SentencePairPlan(config, data, 0)
        seen = {token for n in range(plan.rows_per_epoch) for text in texts(plan.row(n)) for token in text}
        stored = {int(token) for each in data.documents if each[1] - each[0] > 1 for token in data.read(*each)}
        assert len(stored - seen) <= len(data.documents), "but for single tokens at the end of a document"


def test_rows_are_a_function_of_their_number(data: SentenceCorpus) -> None:
    one, other = (SentencePairPlan(SentencePairRows(length=LENGTH), data, 5) for _ in range(2))
    numbers = range(2 * one.rows_per_epoch + 3)
    rows = [one.row(number) for number in numbers]
    for number in reversed(numbers):
        again = other.row(number)
        assert np.array_equal(again.tokens, rows[number].tokens) and again.label == rows[number].label
    different = SentencePairPlan(SentencePairRows(length=LENGTH), data, 6)
    assert not all(np.array_equal(different.row(n).tokens, rows[n].tokens) for n in range(9))
    assert not all(np.array_equal(rows[n].tokens, rows[n + one.rows_per_epoch].tokens) for n in range(9))


def test_batches_have_segments_and_labels_on_any_rank(data: SentenceCorpus) -> None:
    plan = SentencePairPlan(SentencePairRows(length=LENGTH), data, 5)
    whole = next(iter(Loader(plan, 4)))
    assert isinstance(whole, SentencePairBatch)
    assert whole.segments is not None and whole.lengths is not None and whole.labels is not None
    for row in range(4):
        assert whole.segments[row].tolist() == [int(at >= plan.row(row).second) for at in range(LENGTH)]
        assert int(whole.lengths[row]) == plan.row(row).real and int(whole.labels[row]) == plan.row(row).label
    half = next(iter(Loader(plan, 4, rank=1, world=2)))
    wanted = whole.slice(2, 4)
    for field in dataclasses.fields(SentencePairBatch):
        mine, theirs = getattr(half, field.name), getattr(wanted, field.name)
        assert mine is theirs is None or (mine == theirs).all(), field.name
    assert collate([plan.row(0)], [0]).inputs.shape == (1, LENGTH)


def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="length: want at least 5"):
        SentencePairRows(length=4)
    alone = corpus(tmp_path / "one", [50])
    with pytest.raises(DataError, match=r"want at least two documents, .* found 1; rows\.second=swapped"):
        SentencePairPlan(SentencePairRows(length=LENGTH), alone, 0)
    assert SentencePairPlan(SentencePairRows(length=LENGTH, second="swapped"), alone, 0).rows_per_epoch > 0
