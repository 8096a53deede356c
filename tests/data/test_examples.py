"""Examples: labelled texts as shards and rows; tags follow tokens, answers follow windows, each target counts once."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heddle.core import DamageError, DataError, find, kinds
from heddle.data.rows import ExampleBatch, ExampleRows, Loader
from heddle.data.shards import (
    ClassSet,
    Prepared,
    Shards,
    TagSet,
    find_labels,
    open_prepared,
    open_split,
    prepare,
    text_windows,
)
from heddle.data.sources import CorpusConfig, FileSplit, HashSplit, LabelKind, Split, corpus_for
from heddle.text.tokenizers import BpeTokenizer, ByteTokenizer, CharacterTokenizer, Tokenizer, TokenizerConfig

WORDS = [f"{a}{b}" for a in ("ba", "do", "gé", "Ki", "x'") for b in ("na", "rr", "-st", "ü", "zz")]
SPLIT = HashSplit(fraction=0.3)
SIZES = {"wordpiece": {"vocab": 50}, "unigram": {"vocab": 260}}


def corpus(path: Path, name: str, text: str, wanted: LabelKind) -> CorpusConfig:
    (path / name).write_text(text)
    found = corpus_for(str(path / name))
    return CorpusConfig(sources=found.sources, split=SPLIT).resolve(wanted)


def tagged(path: Path, sentences: int = 40) -> CorpusConfig:
    draw = np.random.default_rng(0)
    blocks = []
    for _ in range(sentences):
        words = [WORDS[n] for n in draw.integers(len(WORDS), size=draw.integers(1, 9))]
        blocks.append("".join(f"{word} {'B-X' if word[0] == 'b' else 'O'}\n" for word in words))
    return corpus(path, "a.conll", "\n".join(blocks), "tags")


def classed(path: Path, several: bool = False, pairs: bool = False) -> CorpusConfig:
    rows: list[dict[str, Any]] = []
    for n in range(60):
        label: Any = [name for name in "pqr" if (n + ord(name)) % 3] if several else "pqr"[n % 3]
        rows.append({"text": " ".join(WORDS[: 1 + n % 25]), "label": label})
        rows[-1] |= {"pair": f"second {n}"} if pairs else {}
    return corpus(path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows), "classes")


def answers(path: Path) -> CorpusConfig:
    rows = []
    for n in range(30):
        context = " ".join([*WORDS, f"key{n}", *WORDS])
        start = context.index(f"key{n}")
        found = [{"text": f"key{n}", "answer_start": start}] if n % 3 else []
        rows.append({"question": f"which {n}?", "context": context, "answers": found})
    return corpus(path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows), "answers")


def prepared(path: Path, data: CorpusConfig, config: TokenizerConfig | None = None) -> tuple[Prepared, Tokenizer]:
    made = (config or CharacterTokenizer()).train(data.sample())
    return prepare(data, made, path / "data"), made


def batches(made: Prepared, rows: ExampleRows, split: Split = Split.TRAIN) -> list[ExampleBatch]:
    plan = rows.build(open_split(made, split)[0], 0)
    found = list(Loader(plan, rows.batch).once())
    assert all(isinstance(batch, ExampleBatch) for batch in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [name for name in kinds(TokenizerConfig) if name not in ("own", "pretrained")])
def test_tags_stand_at_the_first_token_of_each_word(kind: str, tmp_path: Path) -> None:
    config = kinds(TokenizerConfig)[kind](**SIZES.get(kind, {}))
    data = tagged(tmp_path)
    made, tokenizer = prepared(tmp_path, data, config)
    shards, _ = open_split(made, Split.TRAIN)
    assert shards.examples is not None and made.labels == TagSet(names=("B-X", "O"))
    documents = [document for split, document in data.split_documents(counter()) if split is Split.TRAIN]
    for number, document in enumerate(documents):
        stored = shards.examples.labels.document(number)[:-1]
        spans, words = tokenizer.spans(document.text), document.text.split()
        assert len(stored) == len(spans) == shards.lengths[number] - 1
        places = np.flatnonzero(stored)
        assert len(places) == len(words), "a tag for each word"
        for place, word in zip(places.tolist(), words, strict=True):
            piece = document.text[spans[place][0] : spans[place][1]].strip()
            assert word.startswith(piece) and piece
            assert stored[place] == (1 if word[0] == "b" else 2)


def counter() -> Any:
    from heddle.data.sources import DocumentCounter

    return DocumentCounter()


@pytest.mark.parametrize(("length", "capacity", "overlap"), [(5, 9, 2), (9, 9, 2), (10, 9, 2), (50, 9, 3), (50, 9, 0)])
def test_windows_own_each_token_once_and_show_what_is_around_it(length: int, capacity: int, overlap: int) -> None:
    found = text_windows(length, capacity, overlap)
    assert [n for w in found for n in range(w.own_start, w.own_stop)] == list(range(length))
    assert all(w.start <= w.own_start <= w.own_stop <= w.stop and w.stop - w.start <= capacity for w in found)
    assert found[0].start == 0 and found[-1].stop == length


@pytest.mark.parametrize("length", [12, 64])
def test_every_tag_is_a_target_once_in_an_epoch(length: int, tmp_path: Path) -> None:
    made, tokenizer = prepared(tmp_path, tagged(tmp_path))
    shards, _ = open_split(made, Split.TRAIN)
    assert shards.examples is not None
    total = sum(np.count_nonzero(shards.examples.labels.document(n)[:-1]) for n in range(shards.count))
    found = batches(made, ExampleRows(length=length, batch=4))
    assert sum(batch.tokens for batch in found) == total
    for batch in found:
        assert batch.lengths is not None and batch.inputs.shape[1] <= length
        for row, size in zip(batch.inputs.tolist(), batch.lengths.tolist(), strict=True):
            assert row[0] == tokenizer.end
            assert size == 1 or row[size - 1] != tokenizer.end
        firsts = batch.inputs[batch.weights > 0]
        tags = batch.targets[batch.weights > 0]
        assert [(tokenizer.token(one) == "b") for one in firsts.tolist()] == (tags == 0).tolist()


def test_classes_pairs_and_segments(tmp_path: Path) -> None:
    made, tokenizer = prepared(tmp_path, classed(tmp_path, pairs=True))
    assert made.labels == find_labels(classed(tmp_path, pairs=True))
    assert isinstance(made.labels, ClassSet) and made.labels.names == ("p", "q", "r") and not made.labels.several
    for batch in batches(made, ExampleRows(length=300, batch=8)):
        assert batch.segments is not None and batch.lengths is not None and batch.labels is not None
        for number, size in enumerate(batch.lengths.tolist()):
            if batch.examples is not None and batch.examples[number] < 0:
                continue
            ids, split = batch.inputs[number, :size].tolist(), batch.segments[number].tolist().index(1)
            first, second = tokenizer.decode(ids[1 : split - 1]), tokenizer.decode(ids[split:])
            assert second.startswith("second ") and ids[0] == ids[split - 1] == tokenizer.end
            assert (
                int(batch.labels[number, 0]) == int(second.split()[1]) % 3
                and first.split() == WORDS[: len(first.split())]
            )


def test_several_classes_are_zeros_and_ones(tmp_path: Path) -> None:
    made, _ = prepared(tmp_path, classed(tmp_path, several=True))
    assert isinstance(made.labels, ClassSet) and made.labels.several
    found = batches(made, ExampleRows(length=300, batch=8))
    labels = torch.cat([batch.labels for batch in found if batch.labels is not None])
    assert labels.shape[1] == 3 and set(labels.flatten().tolist()) == {0, 1}


def test_answers_are_found_in_their_window_or_at_the_first_token(tmp_path: Path) -> None:
    made, tokenizer = prepared(tmp_path, answers(tmp_path), BpeTokenizer(vocab=300))
    found = 0
    for batch in batches(made, ExampleRows(length=48, batch=4, overlap=0.5)):
        assert batch.labels is not None
        for ids, (first, last) in zip(batch.inputs.tolist(), batch.labels.tolist(), strict=True):
            text = tokenizer.decode(ids[first : last + 1])
            assert (first, last) == (0, 0) or text.strip().startswith("key")
            found += first > 0
    assert found >= made.counter.kept * 0.6 * 0.6


def test_long_texts_are_cut_only_where_it_is_declared(tmp_path: Path) -> None:
    made, _ = prepared(tmp_path, classed(tmp_path))
    texts, _ = open_split(made, Split.TRAIN)
    windows, head = (ExampleRows(length=40, batch=4, long=long).build(texts, 0) for long in ("windows", "head"))
    assert head.rows_per_epoch < windows.rows_per_epoch
    assert "are cut" in head.notes[0] and "are divided" in windows.notes[0]
    assert ExampleRows(length=400, batch=4).build(texts, 0).notes == ()


def test_a_row_is_a_function_of_its_number_alone(tmp_path: Path) -> None:
    made, _ = prepared(tmp_path, classed(tmp_path))
    plans = [ExampleRows(length=40, batch=4).build(open_split(made, Split.TRAIN)[0], 3) for _ in range(2)]
    many = range(3 * plans[0].rows_per_epoch)
    for number in reversed(many):
        one, other = plans[0].row(number), plans[1].row(number)
        assert np.array_equal(one.tokens, other.tokens)
    seen = [vars(plans[0].row(n))["example"] for n in range(plans[0].rows_per_epoch)]
    assert {n for n in seen if n >= 0} == set(range(open_split(made, Split.TRAIN)[0].count))


def test_prepared_labels_are_found_again_and_damage_is_noticed(tmp_path: Path) -> None:
    data = classed(tmp_path)
    made, tokenizer = prepared(tmp_path, data)
    assert prepare(data, tokenizer, tmp_path / "data").reused
    again = open_prepared(tmp_path / "data")
    assert again is not None and again.labels == made.labels
    labels = made.folder / "train" / "labels"
    kept = tmp_path / "kept"
    shutil.copytree(labels, kept)
    shutil.rmtree(labels)
    shutil.copytree(made.folder / "valid" / "labels", labels)
    with pytest.raises(DamageError, match="want what belongs to"):
        open_split(made, Split.TRAIN)
    shutil.rmtree(labels)
    shutil.copytree(kept, labels)
    file = next(labels.glob("tokens*"))
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    with pytest.raises(DamageError):
        open_split(made, Split.TRAIN)


def test_a_label_that_only_the_held_out_side_has_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"text {n},{'pq'[n % 2]}\n" for n in range(9)))
    (tmp_path / "dev.csv").write_text("text,label\nother,p\nmore,s\n")
    train, dev = (corpus_for(str(tmp_path / name)).sources for name in ("train.csv", "dev.csv"))
    data = CorpusConfig(sources=train, split=FileSplit(source=dev[0])).resolve("classes")
    with pytest.raises(DataError, match=r"dev.csv:3: label 's' is not among those of the training split: p, q"):
        prepare(data, ByteTokenizer().train([]), tmp_path / "data")


def test_unlabelled_texts_are_examples_where_rows_want_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\n" + "".join(f"text {n}\n" for n in range(40)))
    data = CorpusConfig(sources=corpus_for(str(tmp_path / "a.csv")).sources, split=SPLIT)
    tokenizer = ByteTokenizer().train([])
    made = prepare(data, tokenizer, tmp_path / "data", examples=True)
    assert made.labels is not None and made.labels.kind == "none"
    assert sum(batch.tokens for batch in batches(made, ExampleRows(length=32, batch=4))) == made.counter.kept - len(
        Shards.open(made.shard_folders(Split.VALID)[0]).lengths
    )
    plain = prepare(data, tokenizer, tmp_path / "plain")
    assert plain.labels is None and plain.fingerprint != made.fingerprint and not find(data, ExampleRows)
