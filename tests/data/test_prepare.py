"""Prepare: shards equal the documents, are reused or replaced, and appear only when complete."""

import importlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from heddle.core import ConfigError, DataError, decode, encode
from heddle.core.system import temporary_folder
from heddle.data.shards import Shards, open_prepared, prepare
from heddle.data.sources import (
    CorpusConfig,
    Document,
    DocumentCounter,
    FileSplit,
    HashSplit,
    JsonlSource,
    ParallelSource,
    Split,
    TailSplit,
    TextSource,
)
from heddle.text.tokenizers import BpeTokenizer, ByteTokenizer, Tokenizer

room = importlib.import_module("heddle.data.shards.encoding")
TOKENIZER = BpeTokenizer(vocab=300).train([f"some words {i} of many {i * i}" for i in range(200)])


def corpus_of(tmp_path: Path, rows: list[str], **fields: object) -> CorpusConfig:
    """Return a corpus of JSON lines."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return decode(CorpusConfig, {"sources": [encode(JsonlSource(path=str(path)))], **fields})


ROWS = [f"some words {i} of many, é {i * i}\n" * (1 + i % 7) for i in range(500)] + ["long " * 5000, "x" * 30_000]


def documents(folder: Path, tokenizer: Tokenizer = TOKENIZER) -> list[str]:
    """Return the texts that a shard folder holds."""
    shards = Shards.open(folder)
    rows = [shards.document(i) for i in range(shards.count)]
    assert all(row[-1] == tokenizer.end for row in rows)
    return [tokenizer.decode(row[:-1].tolist()) for row in rows]


def test_shards_hold_the_documents_of_each_side_in_order(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, ROWS)
    made = prepare(corpus, TOKENIZER, tmp_path / "out")
    split_documents = list(corpus.split_documents(DocumentCounter()))
    for split, folder in ((Split.TRAIN, made.train), (Split.VALID, made.valid)):
        wanted = [d.text for s, d in split_documents if s is split]
        assert documents(folder) == wanted
        shards = Shards.open(folder)
        assert shards.bytes == sum(len(t.encode()) for t in wanted)
        assert shards.words == sum(len(t.split()) for t in wanted)
        assert (shards.vocab, shards.end, shards.fingerprint) == (300, TOKENIZER.end, made.fingerprint)
    assert made.counter.seen == made.counter.kept == len(ROWS)
    assert json.loads((tmp_path / "out" / "prepared.json").read_text())["ledger"] == made.counter.plain()


def test_ids_do_not_depend_on_batches_or_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(tmp_path, ROWS)
    prepare(corpus, TOKENIZER, tmp_path / "one")
    monkeypatch.setattr(room, "BATCH", 100)
    monkeypatch.setattr(room, "WORKERS", 1)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    prepare(corpus, TOKENIZER, tmp_path / "two")
    one, two = (Shards.open(tmp_path / name / "train") for name in ("one", "two"))
    assert one.count == two.count
    for i in range(one.count):
        assert np.array_equal(one.document(i), two.document(i))
        assert one.document(i)[:-1].tolist() == TOKENIZER.encode(TOKENIZER.decode(one.document(i).tolist()))


def test_a_finished_folder_is_reused_until_something_changes(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, ROWS)
    first = prepare(corpus, TOKENIZER, tmp_path / "out")
    again = prepare(corpus, TOKENIZER, tmp_path / "out")
    assert (first.reused, again.reused) == (False, True)
    assert again.fingerprint == first.fingerprint
    other = prepare(corpus, ByteTokenizer().train([]), tmp_path / "out")
    assert not other.reused
    assert Shards.open(other.train).vocab == 257
    more = prepare(corpus_of(tmp_path, [*ROWS, "new"]), TOKENIZER, tmp_path / "out")
    assert more.counter.seen == len(ROWS) + 1
    split = prepare(corpus_of(tmp_path, [*ROWS, "new"], split="tail"), TOKENIZER, tmp_path / "out")
    assert not split.reused
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "rows.jsonl"]


def test_a_folder_with_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, ROWS)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match="not prepared data"):
        prepare(corpus, TOKENIZER, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"
    (tmp_path / "free").mkdir()
    assert prepare(corpus, TOKENIZER, tmp_path / "free").train.is_dir()


def test_a_crash_leaves_nothing_that_looks_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(tmp_path, ROWS)
    good = prepare(corpus, TOKENIZER, tmp_path / "out")

    def failing(self: CorpusConfig, counter: DocumentCounter) -> Iterator[tuple[Split, Document]]:
        for number, document in enumerate(original(self, counter)):
            if number == 300:
                raise KeyboardInterrupt
            yield document

    original = CorpusConfig.split_documents
    monkeypatch.setattr(CorpusConfig, "split_documents", failing)
    monkeypatch.setattr(room, "BATCH", 100)
    for folder in ("new", "out"):
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, ByteTokenizer().train([]), tmp_path / folder)
    assert open_prepared(tmp_path / "new") is None
    assert not (tmp_path / "new").exists()
    kept = open_prepared(tmp_path / "out")
    assert kept is not None
    assert kept.fingerprint == good.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "rows.jsonl"]


@pytest.mark.parametrize("stale", [False, True])
def test_the_first_of_two_that_prepare_the_same_stays(stale: bool, tmp_path: Path) -> None:
    corpus, out = corpus_of(tmp_path, ROWS), tmp_path / "out"
    if stale:
        prepare(corpus, ByteTokenizer().train([]), out)
    marks: list[int] = []

    def meanwhile(documents: int, _: int) -> None:
        if documents == 100:
            assert not prepare(corpus, TOKENIZER, out).reused
            marks.append((out / "prepared.json").stat().st_ino)

    assert prepare(corpus, TOKENIZER, out, meanwhile).reused
    assert marks == [(out / "prepared.json").stat().st_ino]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "rows.jsonl"]


def test_many_prepare_the_same_at_once(tmp_path: Path) -> None:
    corpus, at_once = corpus_of(tmp_path, ROWS[:40]), threading.Barrier(4)

    def one(tokenizer: Tokenizer) -> bool:
        at_once.wait(10)
        made = prepare(corpus, tokenizer, tmp_path / "out")
        Shards.open(made.train).close()
        return made.reused

    with ThreadPoolExecutor(4) as pool:
        for tokenizer in [TOKENIZER, ByteTokenizer().train([])] * 5:  # from the second on, each replaces a stale one
            assert list(pool.map(one, [tokenizer] * 4)).count(False) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "rows.jsonl"]


def test_what_the_dead_left_is_swept_and_the_work_of_the_living_is_not(tmp_path: Path) -> None:
    dead, other = tmp_path / ".out.0123abcd.tmp", tmp_path / ".outer.0123abcd.tmp"
    for folder in (dead, other):
        (folder / "new").mkdir(parents=True)
    with temporary_folder(tmp_path / "out") as living:
        assert not dead.exists()
        prepare(corpus_of(tmp_path, ROWS[:40]), TOKENIZER, tmp_path / "out")
        assert living.is_dir()
        assert other.is_dir()
    assert not living.exists()


def test_pairs_make_two_aligned_folders(tmp_path: Path) -> None:
    left, right = tmp_path / "a.en", tmp_path / "a.de"
    left.write_text("".join(f"cat {i:02d}\n" for i in range(100)))
    right.write_text("".join(f"Katze {i:02d}\n" for i in range(100)))
    corpus = CorpusConfig(sources=(ParallelSource(source=str(left), target=str(right)),), split=TailSplit())
    made = prepare(corpus, TOKENIZER, tmp_path / "out")
    assert made.pairs
    assert documents(made.train / "source") == [f"cat {i:02d}" for i in range(90)]
    assert documents(made.valid / "target") == [f"Katze {i}" for i in range(90, 100)]
    both = CorpusConfig(sources=(*corpus.sources, TextSource(path=str(left))))
    with pytest.raises(ConfigError, match="preference pairs, conversations or media, got 'pairs and texts'"):
        prepare(both, TOKENIZER, tmp_path / "both")


def test_empty_and_binary_corpora_are_refused_with_their_counts(tmp_path: Path) -> None:
    for name, data in {"empty.txt": b"", "blank.txt": b" \n\n", "binary.txt": bytes(range(256)) * 10}.items():
        path = tmp_path / name
        path.write_bytes(data)
        corpus = CorpusConfig(sources=(TextSource(path=str(path)),), split=TailSplit())
        wanted = (
            rf"^no documents to learn from: 1 seen, 0 kept, 1 skipped \(1 (empty|binary), the first at .*{name}.*\)"
        )
        with pytest.raises(DataError, match=wanted):
            prepare(corpus, TOKENIZER, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_split_that_leaves_a_side_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^split hash: none of 2 documents for valid; hold out more"):
        prepare(corpus_of(tmp_path, ["a", "b"], split=encode(HashSplit(fraction=1e-9))), TOKENIZER, tmp_path / "out")
    with pytest.raises(DataError, match="for train"):
        prepare(corpus_of(tmp_path, ["a", "b"], split=encode(HashSplit(fraction=0.999))), TOKENIZER, tmp_path / "out")


def test_a_source_of_its_own_is_held_out_and_watched(tmp_path: Path) -> None:
    held = tmp_path / "held.txt"
    held.write_text("held out\n")
    corpus = corpus_of(tmp_path, ["a", "b"], split=encode(FileSplit(source=TextSource(path=str(held)))))
    assert documents(prepare(corpus, TOKENIZER, tmp_path / "out").valid) == ["held out\n"]
    held.write_text("held out anew\n")
    assert documents(prepare(corpus, TOKENIZER, tmp_path / "out").valid) == ["held out anew\n"]


def test_progress_is_told_in_documents_and_bytes(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    prepare(corpus_of(tmp_path, ROWS), TOKENIZER, tmp_path / "out", lambda *counts: told.append(counts))
    assert told[-1] == (len(ROWS), sum(len(row.encode()) for row in ROWS))
    assert told == sorted(told)
