"""Row plans, each by hand on a corpus small enough to write out; the laws over all kinds are in tests/laws."""

from pathlib import Path

import numpy as np
import pytest

from heddle.core import ConfigError, DataError, decode, kinds
from heddle.data.rows import PackedRows, PairRows, Row, RowsConfig, StreamRows
from heddle.data.rows.plan import permutation
from heddle.data.shards import Shards, ShardWriter

END = 0


def corpus(folder: Path, documents: list[list[int]]) -> Shards:
    with ShardWriter(folder, vocab=100_000, end=END, fingerprint="") as writer:
        for document in documents:
            writer.add(document, bytes=1, words=1)
    return Shards.open(folder)


@pytest.fixture
def three(tmp_path: Path) -> Shards:
    return corpus(tmp_path / "three", [[1, 2, 3], [4], [5, 6, 7, 8, 9]])  # with ends: 4 + 2 + 6 tokens


def printable_path(row: Row) -> tuple[list[int], list[int], list[float]]:
    return row.tokens[:-1].tolist(), row.tokens[1:].tolist(), row.weights.tolist()


def test_packed_rows_by_hand(three: Shards) -> None:
    plan = PackedRows(length=5, shuffle=False).build(three, 0)
    assert plan.rows_per_epoch == 3
    rows = [plan.row(g) for g in range(3)]
    assert printable_path(rows[0]) == ([0, 1, 2, 3, 0], [1, 2, 3, 0, 4], [1] * 5)
    assert printable_path(rows[1]) == ([4, 0, 5, 6, 7], [0, 5, 6, 7, 8], [1] * 5)
    assert printable_path(rows[2]) == ([8, 9, 0, 0, 0], [9, 0, 0, 0, 0], [1, 1, 0, 0, 0])
    documents = [row.documents.tolist() for row in rows if row.documents is not None]
    positions = [row.positions.tolist() for row in rows if row.positions is not None]
    assert documents == [[0, 0, 0, 0, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert positions == [[0, 1, 2, 3, 0], [0, 0, 1, 2, 3], [0, 1, 0, 1, 2]]
    assert printable_path(plan.row(4)) == printable_path(rows[1])


def test_joined_rows_have_no_marks(three: Shards) -> None:
    row = PackedRows(length=5, boundaries="stream").build(three, 0).row(0)
    assert row.documents is None and row.positions is None


def test_epochs_differ_even_for_one_long_document(tmp_path: Path) -> None:
    shards = corpus(tmp_path / "one", [list(range(1, 1000))])
    plan = PackedRows(length=10).build(shards, 0)
    heads = [{int(plan.row(e * plan.rows_per_epoch + g).tokens[0]) for g in range(100)} for e in range(3)]
    assert heads[0] != heads[1] and heads[1] != heads[2]


def test_a_batch_is_not_one_book(tmp_path: Path) -> None:
    shards = corpus(tmp_path / "two", [list(range(1, 1000)), list(range(1000, 2000))])
    plan = PackedRows(length=10).build(shards, 0)
    books = [int(plan.row(g).tokens[5]) >= 1000 for g in range(40)]
    assert 8 < sum(books) < 32


def test_streams_by_hand(three: Shards) -> None:
    plan = StreamRows(length=2, lanes=2, boundaries="reset").build(three, 0)
    assert (plan.rows_per_epoch, plan.batch) == (6, 2)
    lanes = [[plan.row(g) for g in range(lane, 6, 2)] for lane in (0, 1)]
    targets = [[t for row in lane for t in row.tokens[1:].tolist()] for lane in lanes]
    assert targets == [[1, 2, 3, 0, 4, 0], [5, 6, 7, 8, 9, 0]]
    assert [[row.fresh for row in lane] for lane in lanes] == [[True, False, True], [True, False, False]]
    joined = StreamRows(length=2, lanes=2).build(three, 0)
    assert [joined.row(g).fresh for g in range(6)] == [True, True, False, False, False, False]
    assert joined.row(6).fresh, "a new epoch begins afresh"


def test_a_stream_row_continues_its_lane(tmp_path: Path) -> None:
    shards = corpus(tmp_path / "one", [list(range(1, 1000))])
    plan = StreamRows(length=7, lanes=3).build(shards, 0)
    for g in range(plan.rows_per_epoch - 3):
        assert plan.row(g).tokens[-1] == plan.row(g + 3).tokens[0]


def test_pairs_share_the_lengths_of_their_batch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 40, 57)
    target = corpus(tmp_path / "t", [[i + 1] * int(n) for i, n in enumerate(sizes)])
    source = corpus(tmp_path / "s", [[i + 1] * int(n + 3) for i, n in enumerate(sizes)])
    plan = PairRows(length=38, source_length=64, batch=8).build(target, 0, source)
    kept = int((sizes + 1 <= 38).sum())
    assert plan.skipped == {"source_too_long": 0, "target_too_long": 57 - kept}
    assert plan.rows_per_epoch == -(-kept // 8) * 8
    waste = total = 0
    for first in range(0, plan.rows_per_epoch, 8):
        rows = [plan.row(first + i) for i in range(8)]
        assert len({row.tokens.shape for row in rows}) == 1
        for row in rows:
            assert row.source is not None and row.source_length is not None
            count = int(row.weights.sum())
            total, waste = total + len(row.weights), waste + len(row.weights) - count
            if count:  # a pair, not the filling of the last batch
                assert row.tokens[0] == END and row.tokens[count] == END
                assert row.source_length == count + 3
                assert set(row.source[: row.source_length - 1].tolist()) == set(row.tokens[1:count].tolist())
            assert set(row.source[row.source_length :].tolist()) <= {END}
    assert waste / total < 0.35


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (lambda: PackedRows(length=0), "length"),
        (lambda: StreamRows(lanes=0), "lanes"),
        (lambda: PairRows(batch=0), "batch"),
        (lambda: PairRows(jitter=1.0), "jitter"),
    ],
)
def test_wrong_fields_are_named(config, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        config()


def test_rows_come_from_plain_data() -> None:
    assert decode(RowsConfig, {"kind": "packed", "length": 8}) == PackedRows(length=8)
    texts = {"packed", "streams", "pairs", "sentence_pairs", "examples", "preferences"}
    assert set(kinds(RowsConfig)) == texts | {"media", "media_examples"}


def test_a_corpus_smaller_than_one_row_is_one_clear_line(three: Shards, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="want at least 13 tokens for one row, found 12"):
        PackedRows(length=13).build(three, 0)
    with pytest.raises(DataError, match="one row in each of 4 lanes"):
        StreamRows(length=4, lanes=4).build(three, 0)
    with pytest.raises(DataError, match="found 0"):
        PackedRows().build(corpus(tmp_path / "none", []), 0)


def test_pairs_need_two_sides_and_others_one(three: Shards, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without targets"):
        PairRows().build(three, 0)
    with pytest.raises(ConfigError, match="pairs"):
        PackedRows(length=4).build(three, 0, three)
    with pytest.raises(DataError, match="found 1"):
        PairRows().build(three, 0, corpus(tmp_path / "other", [[1]]))
    with pytest.raises(DataError, match="found none among 3"):
        PairRows(length=1).build(three, 0, three)


def test_the_order_of_a_seed_is_fixed_for_all_versions() -> None:
    assert permutation(8, 0, "rows", 0).tolist() == [7, 5, 2, 6, 4, 0, 3, 1]
    assert sorted(permutation(1000, 3, "x").tolist()) == list(range(1000))
