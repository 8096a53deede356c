"""Pairs with a prototype: the source is the text, the separator and the prototype, as an editor reads them later."""

import json
from pathlib import Path

import pytest

from heddle.core import ConfigError, DataError
from heddle.data.shards import Shards, prepare
from heddle.data.sources import (
    CorpusConfig,
    CsvSource,
    Document,
    DocumentCounter,
    FileSplit,
    JsonlSource,
    SkipReason,
    corpus_for,
)
from heddle.text.tokenizers import ByteTokenizer

ROWS = [
    {"text": "how are you?", "target": "fine.", "prototype": "good, thanks."},
    {"text": "how are you?", "target": "fine.", "prototype": "not well."},
    {"text": "where is it?", "target": "there.", "prototype": ""},
]


def written(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_source_is_what_an_editor_is_given_later(tmp_path: Path) -> None:
    file, held = written(tmp_path / "a.jsonl", ROWS), written(tmp_path / "b.jsonl", [{**ROWS[2], "text": "who?"}])
    columns = {"target": "target", "prototype": "prototype"}
    corpus = CorpusConfig(
        sources=(JsonlSource(path=file, **columns),), split=FileSplit(source=JsonlSource(path=held, **columns))
    )
    tokenizer = ByteTokenizer().train([])
    made = prepare(corpus, tokenizer, tmp_path / "prepared")
    assert (made.counter.kept, made.counter.skipped.total()) == (4, 0)  # equal but for the prototype: no copies
    source = Shards.open(made.train / "source")
    for number, row in enumerate(ROWS):
        wanted = tokenizer.source(str(row["text"]), str(row["prototype"]))
        assert source.document(number).tolist() == wanted
        text, prototype = tokenizer.encode(str(row["text"])), tokenizer.encode(str(row["prototype"]))
        assert wanted == [*text, tokenizer.end, *prototype, tokenizer.end]
    assert tokenizer.source("a") == [*tokenizer.encode("a"), tokenizer.end]


def test_the_column_is_found_by_its_name_beside_text_and_target(tmp_path: Path) -> None:
    (source,) = corpus_for(written(tmp_path / "a.jsonl", ROWS)).resolve("target").sources
    assert isinstance(source, JsonlSource) and source.prototype == "prototype"
    named = JsonlSource(path=source.path, target="target").resolve("target")
    assert isinstance(named, JsonlSource) and named.prototype is None  # who names the columns names them all


def test_an_empty_field_of_a_table_is_no_prototype(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,target,prototype\na,b,\nc,d,e\n")
    source = CsvSource(path=str(tmp_path / "a.csv"), target="target", prototype="prototype")
    assert [one.prototype for one in source.documents(DocumentCounter())] == ["", "e"]


def test_a_row_without_the_field_is_refused_and_so_are_texts_without_targets(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", [{"text": "a", "target": "b"}])
    with pytest.raises(DataError, match=r"a\.jsonl:1: want text in column 'prototype', found no such field"):
        list(JsonlSource(path=file, target="target", prototype="prototype").documents(DocumentCounter()))
    with pytest.raises(ConfigError, match="prototype: want null, because the documents are no pairs, got 'prototype'"):
        list(JsonlSource(path=file, prototype="prototype").documents(DocumentCounter()))


def test_a_pair_that_cannot_be_used_is_counted_with_its_prototype(tmp_path: Path) -> None:
    counter = DocumentCounter()
    file = written(tmp_path / "a.jsonl", [{"text": "", "target": "b", "prototype": "c"}, ROWS[0]])
    source = JsonlSource(path=file, target="target", prototype="prototype")
    assert len(list(source.documents(counter))) == 1
    assert counter.skipped == {SkipReason.EMPTY: 1}


def test_a_pair_stays_on_one_side_of_a_split_whatever_its_prototype() -> None:
    one, two = (Document("a", "", target="b", prototype=prototype) for prototype in ("c", "d"))
    assert one.digest != two.digest
    assert one.split_digest == two.split_digest == Document("a", "", target="b").split_digest
