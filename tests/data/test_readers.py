"""Readers: every source's documents and counts, plain paths, compression, encodings, and what is refused."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.core import ConfigError, DataError, MissingExtra, UsageError, decode, encode, kinds, override, replace
from heddle.core.config import field_types
from heddle.data.shards import Shards, prepare
from heddle.data.sources import (
    CorpusConfig,
    Document,
    DocumentCounter,
    FileSplit,
    HashSplit,
    JsonlSource,
    ParallelSource,
    ParquetSource,
    SkipReason,
    SourceConfig,
    Split,
    TailSplit,
    TextSource,
    corpus_for,
    source_for,
)
from heddle.data.sources.documents import DigestSet
from heddle.data.sources.readers import CsvSource, TsvSource
from heddle.data.sources.records import array_items
from heddle.data.sources.tables import DatasetsSource
from heddle.text.tokenizers import ByteTokenizer


def read(source: SourceConfig) -> tuple[list[Document], DocumentCounter]:
    """Return a source's documents, each counted as kept, and the ledger."""
    counter = DocumentCounter()
    found = []
    for document in source.documents(counter):
        counter.keep()
        found.append(document)
    assert counter.balanced
    return found, counter


def texts(source: SourceConfig) -> list[str]:
    """Return the texts alone."""
    return [document.text for document in read(source)[0]]


def put(path: Path, data: str | bytes) -> str:
    """Write a file and return its path."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


# --- text -------------------------------------------------------------------------------------------------------------


def test_a_file_is_a_document_to_the_letter(tmp_path: Path) -> None:
    text = "  a\n\nb\r\n\n"
    assert texts(TextSource(path=put(tmp_path / "a.txt", text))) == [text.replace("\r", "")], "but for ends of lines"


def test_paragraphs_are_parted_by_blank_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "\n\na\nb\n  \n\nc\n")
    found, _ = read(TextSource(path=path, split="paragraph"))
    assert [(d.text, d.origin) for d in found] == [("a\nb", f"{path}:3"), ("c", f"{path}:7")]


def test_lines_are_documents_and_blank_ones_are_counted(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "a\r\n\nb c\n\u2028d")
    found, counter = read(TextSource(path=path, split="line"))
    assert [(d.text, d.origin) for d in found] == [("a", f"{path}:1"), ("b c", f"{path}:3"), ("\u2028d", f"{path}:4")]
    assert counter.skipped == {SkipReason.EMPTY: 1}


@pytest.mark.parametrize("split", ["file", "paragraph", "line"])
def test_a_long_document_is_cut_between_words_and_nothing_is_lost(split: str, tmp_path: Path) -> None:
    text = "wörter " * 200
    source = decode(
        SourceConfig, {"kind": "text", "path": put(tmp_path / "a.txt", text), "split": split, "longest": 100}
    )
    found = texts(source)
    assert len(found) > 10
    assert all(len(t.encode()) <= 100 for t in found)
    assert "".join(found) == text


def test_a_run_without_a_space_is_never_cut_inside_a_character(tmp_path: Path) -> None:
    text = "日🙂é" * 100
    for split in ("file", "line"):
        source = TextSource(path=put(tmp_path / "a.txt", text), split=split, longest=17)
        assert "".join(texts(source)) == text


def test_a_folder_is_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b/2.txt", "a.txt", "c.md", ".hidden", ".git/x"):
        put(tmp_path / name, name)
    assert texts(TextSource(path=str(tmp_path))) == ["a.txt", "b/2.txt", "c.md"]
    assert texts(TextSource(path=str(tmp_path), pattern="*.txt")) == ["a.txt", "b/2.txt"]
    assert texts(TextSource(path=str(tmp_path / "**" / "*.txt"))) == ["a.txt", "b/2.txt"]


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("name", ["a.txt.{}", "posing_as.txt"])
@pytest.mark.parametrize("kind", [*PACKERS, "zst"])
def test_compression_is_known_by_content(kind: str, name: str, tmp_path: Path) -> None:
    pack = PACKERS[kind] if kind in PACKERS else pytest.importorskip("zstandard").compress
    path = put(tmp_path / name.format(kind), pack("héllo\n".encode() * 50_000))
    assert texts(TextSource(path=path)) == ["héllo\n" * 50_000]
    cut = put(tmp_path / "cut", pack(os.urandom(1000).hex().encode())[:-20])
    _, counter = read(TextSource(path=cut))
    assert counter.skipped.total() >= 1
    assert counter.kept == 0


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_marked_encodings_are_decoded_and_the_mark_is_dropped(encoding: str, tmp_path: Path) -> None:
    text = "日本 héllo 🙂\n" * 10_000
    path = put(tmp_path / "a.txt", text.encode(encoding))
    assert texts(TextSource(path=path)) == [text]


def test_missing_zstandard_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = put(tmp_path / "a.zst", b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(MissingExtra, match=r"zstandard: pip install 'heddle\[data\]'"):
        texts(TextSource(path=path))


# --- tables -----------------------------------------------------------------------------------------------------------


def test_json_lines_have_two_endings_also_in_a_folder(tmp_path: Path) -> None:
    row = b'{"text": "%s"}\n'
    for name, data in {"a.jsonl": row % b"a", "b.ndjson": row % b"b", "c.ndjson.gz": gzip.compress(row % b"c")}.items():
        put(tmp_path / name, data)
    source = source_for(str(tmp_path))
    assert texts(source) == ["a", "b", "c"]
    assert len(source.stamps()) == 3


def test_jsonl_names_what_it_skips(tmp_path: Path) -> None:
    lines = [
        '{"text": "a"}',
        "",
        "{",
        "[1]",
        '{"txt": "b"}',
        '{"text": 3}',
        '{"text": "\\ud800"}',
        '{"text": " "}',
        "[" * 100_000,
        '{"text": "b\\n"}',
        '{"text": "%s"}' % ("x" * 200_000),
    ]
    path = put(tmp_path / "a.jsonl", "\n".join(lines))
    found, counter = read(JsonlSource(path=path, longest=150_000))
    assert [(d.text, d.origin) for d in found] == [("a", f"{path}:1"), ("b\n", f"{path}:10")]
    assert counter.skipped == {
        SkipReason.EMPTY: 2,
        SkipReason.BAD_JSON: 3,
        SkipReason.MISSING_FIELD: 2,
        SkipReason.NOT_UTF8: 1,
        SkipReason.TOO_LONG: 1,
    }


def test_a_json_array_holds_strings_or_objects(tmp_path: Path) -> None:
    rows = [
        "plain",
        {"text": 'a, "b" \\ [c] \ud83d\ude42', "more": [{"text": "no"}]},
        3,
        {"txt": "x"},
        "",
        {"text": "last"},
    ]
    path = put(tmp_path / "a.json", json.dumps(rows, indent=2))
    found, counter = read(source_for(path))
    assert [(d.text, d.origin) for d in found] == [
        ("plain", f"{path}:1"),
        ('a, "b" \\ [c] \U0001f642', f"{path}:2"),
        ("last", f"{path}:6"),
    ]
    assert counter.skipped == {SkipReason.BAD_JSON: 1, SkipReason.MISSING_FIELD: 1, SkipReason.EMPTY: 1}
    pairs = put(tmp_path / "b.json", json.dumps([{"en": "cat", "de": "Katze"}, "x"]))
    found, counter = read(JsonlSource(path=pairs, text="en", target="de"))
    assert [(d.text, d.target) for d in found] == [("cat", "Katze")] and counter.skipped.total() == 1
    assert texts(source_for(put(tmp_path / "c.json", '{"text": "a"}\n{"text": "b"}\n'))) == ["a", "b"]
    assert (
        source_for(put(tmp_path / "d.json", json.dumps([{"messages": [{"role": "user", "content": "x"}]}]))).kind
        == "chat"
    )


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_a_json_array_is_read_in_blocks_of_any_size(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.data.sources.records.BLOCK", block)
    rows = ["a\\", 'b"', "[c],", "\\\\", {"x": [1, {"y": "]"}], "text": "d"}, ["e"], 1.5, None]
    for text in (json.dumps(rows), json.dumps(rows, indent=1)):
        items = list(array_items(io.BufferedReader(io.BytesIO(text.encode())), 100))
        assert [json.loads(item or b"") for item in items] == rows
    items = list(array_items(io.BufferedReader(io.BytesIO(json.dumps(["a", "b" * 200, "c"]).encode())), 100))
    assert items[1] is None and items[0] == b'"a"' and len(items) == 3


def test_a_json_array_that_is_cut_gives_what_comes_before(tmp_path: Path) -> None:
    found, counter = read(source_for(put(tmp_path / "a.json", '["a", "b", "c')))
    assert [d.text for d in found] == ["a", "b"] and counter.skipped == {SkipReason.BAD_JSON: 1}
    found, counter = read(source_for(put(tmp_path / "b.json", '{\n "data": ["a"]\n}')))
    assert not found and counter.skipped == {SkipReason.BAD_JSON: 3}


def test_csv_columns_by_name_and_by_number(tmp_path: Path) -> None:
    table = 'id,text,label\r\n1,"one, ""two""\r\nand three",x\r\n\r\n2,short\n3\n4, ,y\n5,\ufffd,z\n'
    path = put(tmp_path / "a.csv", "\ufeff" + table)
    found, counter = read(source_for(path))
    assert [(d.text, d.origin) for d in found] == [
        ('one, "two"\nand three', f"{path}:2"),
        ("short", f"{path}:5"),
        ("\ufffd", f"{path}:8"),
    ]
    assert counter.skipped == {SkipReason.EMPTY: 2, SkipReason.MISSING_FIELD: 1}
    assert [d.target for d in read(CsvSource(path=path, target="label"))[0]] == ["x", "z"]
    other = put(tmp_path / "B.CSV", "first;1\nsecond;2\n")
    with pytest.raises(DataError, match=r"no column 'text'; the header has first;1: name one, or give its number"):
        texts(source_for(other))
    assert texts(CsvSource(path=other, text=0, delimiter=";")) == ["first", "second"]
    assert [d.text for d in read(CsvSource(path=str(tmp_path), text=1))[0]][-1] == "\ufffd"
    with pytest.raises(ConfigError, match="delimiter: want one character"):
        CsvSource(path=path, delimiter=",,")


def test_csv_names_what_it_skips(tmp_path: Path) -> None:
    rows = b"text\nfirst\n\xff\n" + b"x" * 200 + b"\n" + b"more\n" * 1000 + b"a\0b\n" + b'"never closed\n'
    rows += b"line\n" * 30
    found, counter = read(CsvSource(path=put(tmp_path / "a.csv", rows), longest=100))
    assert [d.text for d in found][:1] == ["first"]
    assert counter.skipped == {SkipReason.NOT_UTF8: 1, SkipReason.TOO_LONG: 2, SkipReason.BINARY: 1}
    assert csv.field_size_limit() == 131_072


def test_line_ends_of_windows_are_no_text(tmp_path: Path) -> None:
    long = "word " * 7 + "x" * 20 + "\r\n" + "y" * 40
    for split in ("file", "paragraph", "line"):
        path = put(tmp_path / "a.txt", f"one\r\ntwo\r\n\r\n{long}\r\n")
        unix = put(tmp_path / "b.txt", f"one\r\ntwo\r\n\r\n{long}\r\n".replace("\r", ""))
        assert texts(TextSource(path=path, split=split)) == texts(TextSource(path=unix, split=split))
        for longest in range(50, 62):
            assert "\r" not in "".join(texts(TextSource(path=path, split=split, longest=longest)))


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("latin-1", False), ("cp1252", False), ("utf-16", False), ("utf-16-le", False), ("utf-8", True), (None, True)],
)
def test_every_source_reads_other_encodings(encoding: str | None, mark: bool, tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        return put(tmp_path / name, ("\ufeff" * mark + text).encode(encoding or "utf-16-be"))

    table = [
        TextSource(path=write("a.txt", "caf\xe9"), encoding=encoding),
        JsonlSource(path=write("a.jsonl", '{"text": "caf\xe9"}\n'), encoding=encoding),
        JsonlSource(path=write("a.json", '["caf\xe9"]'), encoding=encoding),
        TsvSource(path=write("a.tsv", "caf\xe9\tx\n"), encoding=encoding),
        TsvSource(path=write("b.tsv", "caf\xe9\tx\ncaf\xe9\ty\n"), text="caf\xe9", encoding=encoding),
        CsvSource(path=write("a.csv", "text\ncaf\xe9\n"), encoding=encoding),
        ParallelSource(source=write("a.en", "caf\xe9\n"), target=write("a.fr", "x\n"), encoding=encoding),
    ]
    assert [texts(source) for source in table] == [["caf\xe9"]] * len(table)
    with pytest.raises(ConfigError, match="encoding: want one that Python knows, such as latin-1 or utf-16, got 'hex'"):
        TextSource(path="x", encoding="hex")


def test_fingerprints_are_as_before_there_were_encodings() -> None:
    source = TextSource(path="a.txt")
    assert (
        "encoding" not in source.identity() and replace(source, encoding="latin-1").identity()["encoding"] == "latin-1"
    )
    assert "longest" not in ParquetSource(path="a").identity() and source.identity()["longest"] == source.longest
    held = CorpusConfig(split=FileSplit(source=source)).identity()
    assert held["split"]["source"] == source.identity() and held["sources"] == [{"kind": "builtin", "part": "sources"}]


def test_jsonl_and_tsv_give_pairs(tmp_path: Path) -> None:
    rows = put(tmp_path / "a.jsonl", json.dumps({"en": "cat", "de": "Katze"}) + '\n{"en": "x"}\n')
    found, counter = read(JsonlSource(path=rows, text="en", target="de"))
    assert [(d.text, d.target) for d in found] == [("cat", "Katze")]
    assert counter.skipped == {SkipReason.MISSING_FIELD: 1}
    table = put(tmp_path / "a.tsv", "1\tcat\tKatze\n2\tdog\n")
    found, counter = read(TsvSource(path=table, text=1, target=2))
    assert [(d.text, d.target) for d in found] == [("cat", "Katze")]
    assert counter.skipped == {SkipReason.MISSING_FIELD: 1}


def test_tsv_columns_by_number_and_by_name(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "id\tbody\r\n1\tfirst\r\n2\tsecond\r\n")
    assert texts(TsvSource(path=path, text="body")) == ["first", "second"]
    assert texts(TsvSource(path=path)) == ["id", "1", "2"]
    with pytest.raises(DataError, match="no column 'bdy'; the header has id, body"):
        texts(TsvSource(path=path, text="bdy"))


def test_parallel_lines_are_pairs_and_bad_ones_go_together(tmp_path: Path) -> None:
    left = put(tmp_path / "a.en", b"cat\n\xff\ndog\n\nlast")
    right = put(tmp_path / "a.de", "Katze\nx\n\ny\nletzte\n")
    found, counter = read(ParallelSource(source=left, target=right))
    assert [(d.text, d.target) for d in found] == [("cat", "Katze"), ("last", "letzte")]
    assert counter.skipped == {SkipReason.NOT_UTF8: 1, SkipReason.EMPTY: 2}


def test_parallel_and_prepared_paths_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / "a.en", "cat\n")
    put(tmp_path / "a.de", "Katze\n")
    put(tmp_path / "prepared.json", "{}")
    pair = ParallelSource(source="~/a.en", target="~/a.de")
    assert [(d.text, d.target) for d in read(pair)[0]] == [("cat", "Katze")]
    assert [size for _, size, _ in pair.stamps()] == [4, 6]
    corpus = corpus_for("~")
    assert corpus.prepared == tmp_path
    assert corpus.sources[0].stamps()[0][:2] == ["prepared.json", 2]


def test_parallel_files_of_unequal_length_are_refused(tmp_path: Path) -> None:
    one, two = put(tmp_path / "one", "a\nb\n"), put(tmp_path / "two", "a\n")
    for source, target in ((one, two), (two, one)):
        with pytest.raises(DataError, match=r"two: ends before line 2"):
            texts(ParallelSource(source=source, target=target))
    with pytest.raises(DataError, match="binary"):
        texts(ParallelSource(source=one, target=put(tmp_path / "three", b"\0\0")))


def test_parquet_is_read_by_column(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", None, "", "b"], "n": [1, 2, 3, 4]}), path)
    found, counter = read(ParquetSource(path=str(path)))
    assert [d.text for d in found] == ["a", "b"]
    assert counter.skipped == {SkipReason.MISSING_FIELD: 1, SkipReason.EMPTY: 1}
    with pytest.raises(DataError, match="no column 'body'; it has text, n"):
        texts(ParquetSource(path=str(path), text="body"))
    with pytest.raises(DataError, match="no column"):
        texts(ParquetSource(path=str(path), target="nope"))
    put(tmp_path / "b.parquet", "not parquet")
    assert read(ParquetSource(path=str(tmp_path)))[1].skipped[SkipReason.UNREADABLE] == 1


def test_absent_extras_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match="datasets"):
        texts(DatasetsSource(name="anything"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="pyarrow"):
        texts(ParquetSource(path=put(tmp_path / "a.parquet", "x")))


def test_datasets_are_loaded_from_a_folder_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class DatasetDict(dict[str, object]):
        """As the library has it: splits by name."""

    def load_dataset(name: str, *, split: str, streaming: bool, trust_remote_code: bool) -> list[dict[str, object]]:
        assert trust_remote_code is False  # a data set of a stranger runs no code
        if name != "known" or not streaming:
            raise ValueError("no such data set\nmore")
        return [{"text": split}, {"text": None}]

    saved = DatasetDict(train=[{"text": "a"}], test=[{"text": "b"}])
    fake = types.ModuleType("datasets")
    fake.__dict__.update(DatasetDict=DatasetDict, load_dataset=load_dataset, load_from_disk=lambda _: saved)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert texts(DatasetsSource(name="known", split="dev")) == ["dev"]
    assert texts(DatasetsSource(name=str(tmp_path), split="test")) == ["b"]
    with pytest.raises(UsageError, match=r"^unknown: cannot be loaded: no such data set$"):
        texts(DatasetsSource(name="unknown"))
    with pytest.raises(DataError, match="no column 'body'"):
        texts(DatasetsSource(name="known", text="body"))
    put(tmp_path / "dataset_info.json", "{}")
    assert source_for(str(tmp_path)) == DatasetsSource(name=str(tmp_path))


# --- plain paths ------------------------------------------------------------------------------------------------------


def test_a_path_finds_its_reader_by_ending(tmp_path: Path) -> None:
    for name, kind in {
        "a.txt": "text",
        "a.md.gz": "text",
        "a.jsonl": "jsonl",
        "a.jsonl.zst": "jsonl",
        "a.tsv.xz": "tsv",
        "a.parquet": "parquet",
    }.items():
        (tmp_path / kind).mkdir(exist_ok=True)
        path = put(tmp_path / kind / name, "x")
        assert source_for(path).kind == kind
        assert source_for(str(tmp_path / kind)).kind == kind
    assert source_for(str(tmp_path / "*" / "*.jsonl")).kind == "jsonl"
    assert source_for("builtin").kind == "builtin"
    with pytest.raises(UsageError, match="several kinds"):
        source_for(str(tmp_path))


def test_wrong_paths_get_one_line_and_the_nearest_name(tmp_path: Path) -> None:
    put(tmp_path / "corpus.txt", "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"corpis.txt: no such file; did you mean '.*corpus.txt'\?$"):
        source_for(str(tmp_path / "corpis.txt"))
    with pytest.raises(UsageError, match="no file matches"):
        source_for(str(tmp_path / "*.jsonl"))
    with pytest.raises(UsageError, match="empty folder"):
        source_for(str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="no such file"):
        source_for(str(tmp_path / "no" / "where.txt"))


def test_few_texts_are_split_by_their_tail_and_many_by_hash(tmp_path: Path) -> None:
    for number in range(200):
        path = put(tmp_path / f"{number:03d}.txt", f"text {number:03d}")
        if number in (0, 4, 198):
            corpus = corpus_for(path if number == 0 else str(tmp_path))
            assert isinstance(corpus.resolve().split, TailSplit)
            assert {split for split, _ in corpus.split_documents(DocumentCounter())} == set(Split)
    assert isinstance(corpus_for(str(tmp_path)).resolve().split, HashSplit)
    rows = put(tmp_path / "few.jsonl", '{"text": "x"}')
    assert isinstance(corpus_for(rows).resolve().split, HashSplit)


def test_a_file_is_split_alike_by_its_path_and_in_a_config(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "one long text " * 30)
    written = decode(CorpusConfig, {"sources": [{"kind": "text", "path": path}]})
    assert written == corpus_for(path) and written.resolve().split == TailSplit()
    made = prepare(written, ByteTokenizer().train([]), tmp_path / "out")
    assert made.counter.kept == 1 and Shards.open(made.valid).tokens == 43
    two = replace(written, sources=(*written.sources, TextSource(path=put(tmp_path / "b.txt", "b"))))
    assert two.resolve().split == TailSplit()
    by_line = override(override(written, "sources.0.split", "line"), "split.fraction", 0.2)
    assert by_line.resolve().split == HashSplit(fraction=0.2)
    assert CorpusConfig().resolve().split == HashSplit(fraction=0.07)
    with pytest.raises(UsageError, match="no such file"):
        decode(CorpusConfig, {"sources": [{"kind": "text", "path": f"{path}x"}]}).resolve()


def test_every_source_config_survives_plain_data() -> None:
    for cls in kinds(SourceConfig).values():
        needed = {"path": "p", "source": "s", "target": "t", "name": "n"}
        source = decode(SourceConfig, {"kind": cls.kind} | {k: v for k, v in needed.items() if k in field_types(cls)})
        assert decode(SourceConfig, encode(source)) == source
    with pytest.raises(ConfigError, match="longest"):
        TextSource(path="x", longest=3)


# --- splits, copies ---------------------------------------------------------------------------------------------------


def lines_corpus(tmp_path: Path, rows: list[str], **fields: object) -> CorpusConfig:
    """Return a corpus of one file of lines."""
    source = TextSource(path=put(tmp_path / "lines.txt", "\n".join(rows) + "\n"), split="line")
    return decode(CorpusConfig, {"sources": [encode(source)], **fields})


def test_hash_split_moves_nothing_when_data_is_added(tmp_path: Path) -> None:
    rows = [f"row {i}" for i in range(4000)]
    before = {d.text: split for split, d in lines_corpus(tmp_path, rows[:2000]).split_documents(DocumentCounter())}
    after = {d.text: split for split, d in lines_corpus(tmp_path, rows[::-1]).split_documents(DocumentCounter())}
    assert all(after[text] == split for text, split in before.items())
    assert 0.03 < sum(split is Split.VALID for split in after.values()) / 4000 < 0.07


def test_hash_split_keeps_the_pieces_of_each_of_several_files_together(tmp_path: Path) -> None:
    for number in range(12):
        put(tmp_path / f"{number}.txt", " ".join(f"{number}:{i}" for i in range(200)))
    halves = HashSplit(fraction=0.5)
    several = CorpusConfig(sources=(TextSource(path=str(tmp_path), longest=100),), split=halves)
    splits: dict[str, set[Split]] = {}
    for split, document in several.split_documents(DocumentCounter()):
        splits.setdefault(document.text.partition(":")[0], set()).add(split)
    assert len(splits) == 12
    assert all(len(found) == 1 for found in splits.values())
    assert set.union(*splits.values()) == set(Split)
    one = CorpusConfig(sources=(TextSource(path=str(tmp_path / "0.txt"), longest=100),), split=halves)
    assert {split for split, _ in one.split_documents(DocumentCounter())} == set(Split)


def test_tail_split_cuts_the_last_fraction_of_characters(tmp_path: Path) -> None:
    text = "".join(chr(97 + i % 26) for i in range(1003))
    corpus = CorpusConfig(sources=(TextSource(path=put(tmp_path / "a.txt", text)),), split=TailSplit(fraction=0.1))
    split_documents = [(split, d.text) for split, d in corpus.split_documents(DocumentCounter())]
    assert split_documents == [(Split.TRAIN, text[: int(1003 * 0.9)]), (Split.VALID, text[int(1003 * 0.9) :])]
    many = lines_corpus(tmp_path, [f"{i:04d}" for i in range(100)], split={"kind": "tail", "fraction": 0.25})
    splits = [split for split, _ in many.split_documents(DocumentCounter())]
    assert splits == [Split.TRAIN] * 75 + [Split.VALID] * 25


def test_file_split_drops_training_copies_of_what_is_held_out(tmp_path: Path) -> None:
    held = TextSource(path=put(tmp_path / "held.txt", "b\nd\n"), split="line")
    corpus = lines_corpus(tmp_path, ["a", "b", "c", "d", "a"], split=encode(FileSplit(source=held)))
    counter = DocumentCounter()
    split_documents = [(str(split), d.text) for split, d in corpus.split_documents(counter)]
    assert split_documents == [("valid", "b"), ("valid", "d"), ("train", "a"), ("train", "c")]
    assert (counter.seen, counter.kept, counter.skipped[SkipReason.DUPLICATE]) == (7, 4, 3)
    assert [d.text for d in corpus.held_out()] == ["b", "d"]


def test_copies_are_found_once_each_across_batches(tmp_path: Path) -> None:
    rows = [f"line {i % 700}" for i in range(5000)]
    counter = DocumentCounter()
    kept = [d.text for _, d in lines_corpus(tmp_path, rows).split_documents(counter)]
    assert kept == [f"line {i}" for i in range(700)]
    assert counter.skipped == {SkipReason.DUPLICATE: 4300}
    assert len(list(lines_corpus(tmp_path, rows, unique=False).split_documents(DocumentCounter()))) == 5000


def test_short_documents_are_left_out_by_name(tmp_path: Path) -> None:
    counter = DocumentCounter()
    assert [d.text for _, d in lines_corpus(tmp_path, ["abc", "a", "abcd"], shortest=3).split_documents(counter)] == [
        "abc",
        "abcd",
    ]
    assert counter.skipped == {SkipReason.TOO_SHORT: 1}


def test_digests_are_remembered_in_few_sorted_runs() -> None:
    seen, known = DigestSet(), set[int]()
    values = [hash((i * 7919) % 5000) % (1 << 64) for i in range(20_000)]
    for start in range(0, len(values), 97):
        batch = values[start : start + 97]
        expected = [v not in known and not known.add(v) for v in batch]  # type: ignore[func-returns-value]
        assert seen.fresh(batch).tolist() == expected
    assert len(seen._runs) < 16


def test_a_sample_is_even_bounded_and_the_whole_when_it_fits(tmp_path: Path) -> None:
    rows = [f"{i:07d}" for i in range(20_000)]
    corpus = lines_corpus(tmp_path, rows)
    assert len(list(corpus.sample())) == sum(
        split is Split.TRAIN for split, _ in corpus.split_documents(DocumentCounter())
    )
    few = [int(text) for text in corpus.sample(14_000)]
    assert 900 < len(few) <= 2000
    assert few == sorted(few)
    assert 0.4 < sum(i < 10_000 for i in few) / len(few) < 0.6


def test_a_sample_of_nothing_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"^no documents to learn from: 1 seen, 0 kept, 1 skipped \(1 binary, the first at .*\)"
    ):
        corpus_for(put(tmp_path / "a.txt", b"\0")).sample()
    with pytest.raises(DataError, match=r"^split hash: none of 1 documents for train; hold out less$"):
        lines_corpus(tmp_path, ["a"], split=encode(HashSplit(fraction=1 - 1e-9))).sample()


def test_a_split_is_not_blamed_for_documents_that_were_skipped(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", '{"text": "a"}\n{\n{\n{"txt": "b"}\n')
    with pytest.raises(DataError, match=r"^documents: 4 seen, 1 kept, 3 skipped \(2 bad json, the first at .*:2; 1 mi"):
        prepare(corpus_for(path), ByteTokenizer().train([]), tmp_path / "out")


def test_the_ledger_says_its_counts_in_one_line() -> None:
    counter = DocumentCounter()
    for _ in range(3):
        counter.see()
    counter.keep()
    counter.skip(SkipReason.EMPTY, "a")
    assert not counter.balanced
    counter.skip(SkipReason.EMPTY, "b")
    assert counter.balanced
    assert str(counter) == "3 seen, 1 kept, 2 skipped (2 empty, the first at a)"
    assert counter.plain()["examples"] == {"empty": "a"}
