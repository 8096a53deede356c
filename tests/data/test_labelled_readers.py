"""Labelled readers: classes, tags, answers and scores in every format; columns that are found; wrong rows."""

import json
from pathlib import Path

import pytest

from heddle.core import HeddleError
from heddle.data.sources import (
    Answers,
    ClassLabels,
    ConllSource,
    CorpusConfig,
    CsvSource,
    Document,
    DocumentCounter,
    HashSplit,
    JsonlSource,
    LabelKind,
    Score,
    Split,
    SquadSource,
    TsvSource,
    WordTags,
    corpus_for,
)
from heddle.data.sources.labels import as_iob2

SQUAD = {"question": "who?", "context": "It was Ann.", "answers": [{"text": "Ann", "answer_start": 7}]}


def put(path: Path, text: str) -> str:
    """Write a file and return its path."""
    path.write_bytes(text.encode())
    return str(path)


def read(path: str, wanted: LabelKind) -> list[Document]:
    """Return the documents of a plain path, read for an objective."""
    corpus = corpus_for(path).resolve(wanted)
    return [document for source in corpus.sources for document in source.documents(DocumentCounter())]


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    files = {
        "plain.csv": "label,text\npos,good film\nneg,bad film\n",
        "other.csv": 'id,review,sentiment\n1,"good film",pos\n2,"bad film",neg\n',
        "two.csv": "tweet,label\ngood film,pos\nbad film,neg\n",
        "headless.tsv": "good film\tpos\nbad film\tneg\nx\tpos\n",
        "rows.jsonl": lines({"text": "good film", "label": "pos"}, {"text": "bad film", "label": "neg"}),
        "array.json": json.dumps([{"text": "good film", "label": "pos"}, {"text": "bad film", "label": "neg"}]),
    }
    for name, text in files.items():
        found = read(put(tmp_path / name, text), "classes")[:2]
        assert [(d.text, d.label) for d in found] == [
            ("good film", ClassLabels(("pos",))),
            ("bad film", ClassLabels(("neg",))),
        ], name


def test_numbers_and_lists_are_labels_and_a_separator_parts_several(tmp_path: Path) -> None:
    rows = lines({"text": "a", "label": 1}, {"text": "b", "label": [2, "x"]}, {"text": "c", "label": []})
    found = [d.label for d in read(put(tmp_path / "a.jsonl", rows), "classes")]
    assert found == [ClassLabels(("1",)), ClassLabels(("2", "x"), True), ClassLabels((), True)]
    path = put(tmp_path / "a.csv", "text,label\na,x;y\nb,\n")
    source = CsvSource(path=path, label="label", separator=";")
    assert [d.label for d in source.documents(DocumentCounter())] == [
        ClassLabels(("x", "y"), True),
        ClassLabels((), True),
    ]


def test_pairs_scores_and_groups(tmp_path: Path) -> None:
    table = "sentence_A\tsentence_B\trelatedness_score\tgroup\na\tb\t4.5\tg\nc\td\t1\th\n"
    path = put(tmp_path / "sick.tsv", table)
    assert [(d.text, d.pair, d.label) for d in read(path, "score")] == [("a", "b", Score(4.5)), ("c", "d", Score(1.0))]
    source = TsvSource(path=path, text="sentence_A", pair="sentence_B", label="relatedness_score", group="group")
    assert [(d.group, d.label) for d in source.documents(DocumentCounter())] == [
        ("g", ClassLabels(("4.5",))),
        ("h", ClassLabels(("1",))),
    ]


def test_two_columns_are_pairs_of_source_and_target(tmp_path: Path) -> None:
    found = read(put(tmp_path / "en-de.tsv", "a dog\tein Hund\na cat\teine Katze\n"), "target")
    assert [(d.text, d.target) for d in found] == [("a dog", "ein Hund"), ("a cat", "eine Katze")]


def test_conll_becomes_iob2_and_documents_stay_together(tmp_path: Path) -> None:
    boundary = "-DOCSTART- -X- O\n\n"
    text = f"{boundary}EU N I-ORG\nrejects V O\n\nAnn N I-PER\nBob N B-PER\nX N I-PER\n\n{boundary}a D O\n"
    found = read(put(tmp_path / "a.conll", text), "tags")
    assert [d.text for d in found] == ["EU rejects", "Ann Bob X", "a"]
    assert found[0].label == WordTags(((0, 2), (3, 10)), ("B-ORG", "O"))
    assert found[1].label == WordTags(((0, 3), (4, 7), (8, 9)), ("B-PER", "B-PER", "I-PER"))
    assert [d.group for d in found] == ["a.conll#1", "a.conll#1", "a.conll#2"]
    rows = lines({"tokens": ["EU", "rejects"], "ner_tags": ["I-ORG", "O"]})
    assert read(put(tmp_path / "a.jsonl", rows), "tags")[0].label == found[0].label
    assert as_iob2(["I-A", "I-A", "I-B", "O", "I-B", "NN", "S-X"]) == ["B-A", "I-A", "B-B", "O", "B-B", "NN", "S-X"]


@pytest.mark.parametrize("form", ["nested", "rows"])
def test_squad(form: str, tmp_path: Path) -> None:
    none = {"question": "why?", "context": SQUAD["context"], "answers": []}
    if form == "nested":
        qas = [{k: row[k] for k in ("question", "answers")} for row in (SQUAD, none)]
        data = {"data": [{"title": "T", "paragraphs": [{"context": SQUAD["context"], "qas": qas}]}]}
        path = put(tmp_path / "a.json", json.dumps(data))
    else:
        path = put(tmp_path / "a.jsonl", lines(SQUAD, none))
    found = read(path, "answers")
    assert [(d.text, d.pair, d.label) for d in found] == [
        ("who?", "It was Ann.", Answers(((7, 10),))),
        ("why?", "It was Ann.", Answers(())),
    ]
    assert len({d.group for d in found}) == 1


def test_json_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    row = '{"text": "a\u2028b\u0085c", "label": "x"}\n'
    assert [d.text for d in read(put(tmp_path / "a.jsonl", row * 2), "classes")] == ["a\u2028b\u0085c"] * 2


def test_texts_with_two_labels_and_groups_stay_on_one_side(tmp_path: Path) -> None:
    rows = "".join(f"text {n},{label}\n" for n in range(60) for label in "xy")
    corpus = CorpusConfig(
        sources=(CsvSource(path=put(tmp_path / "a.csv", f"text,label\n{rows}"), label="label"),),
        split=HashSplit(fraction=0.3),
    )
    splits: dict[str, set[Split]] = {}
    for split, document in corpus.split_documents(DocumentCounter()):
        splits.setdefault(document.text, set()).add(split)
    assert {len(split) for split in splits.values()} == {1} and {Split.TRAIN, Split.VALID} <= set.union(
        *splits.values()
    )


WRONG: dict[str, tuple[LabelKind, str, str, str]] = {
    "no label": (
        "classes",
        "a.csv",
        "text,label\nx,\n",
        "a.csv:2: want a label in column 'label', found an empty field",
    ),
    "no text": ("classes", "a.csv", "text,label\n ,x\n", "a.csv:2: want text in column 'text', found an empty field"),
    "short row": (
        "classes",
        "a.tsv",
        "text\tlabel\nx\n",
        "a.tsv:2: want a label in column 'label', found no such field",
    ),
    "unclear": ("classes", "a.csv", "x,y,z\n1,2,3\n", "which column holds the text? It has x, y, z; name it: data"),
    "unclear header": ("classes", "a.tsv", "tweet\tmood\nx\tgood\n", "which column holds the text? It has tweet, mood"),
    "null": ("classes", "a.jsonl", lines({"text": "x", "label": None}), "a.jsonl:1: want a label in column 'label'"),
    "later row": (
        "classes",
        "a.jsonl",
        lines({"text": "x", "label": 1}, {"text": "y", "labl": 1}),
        "a.jsonl:2: no field",
    ),
    "no number": (
        "score",
        "a.csv",
        "text,pair,score\nx,y,high\n",
        "a.csv:2: want a number in column 'score', found 'high'",
    ),
    "tags missing": (
        "tags",
        "a.jsonl",
        lines({"tokens": ["a", "b"], "tags": ["O"]}),
        "a tag for each of 2 words, found 1",
    ),
    "no words": ("tags", "a.jsonl", lines({"tokens": [], "tags": []}), "a.jsonl:1: want words in column 'tokens'"),
    "columns": ("tags", "a.conll", "a X O\nb O\n", "a.conll:2: want 3 columns, as in the lines before, found 2"),
    "one column": ("tags", "a.conll", "a\nb\n", "a.conll:1: want a word and a tag, in columns 0 and -1, found 1"),
    "tags in csv": ("tags", "a.csv", "text,tags\na,O\n", "csv has no lists, so no tags; want JSON lines or CoNLL"),
    "text": ("classes", "a.txt", "hello\n", "sources.0: want one with classes: CSV, TSV or JSON lines"),
    "answer elsewhere": (
        "answers",
        "a.jsonl",
        lines({**SQUAD, "answers": [{"text": "Ann", "answer_start": 3}]}),
        "not at 3",
    ),
    "no context": (
        "answers",
        "a.jsonl",
        lines({"question": "q"}),
        "a.jsonl:1: no field 'context'; the row has question",
    ),
    "no answers": (
        "answers",
        "a.jsonl",
        lines({"question": "q", "context": "c"}),
        "want `answers`, each with text and",
    ),
    "not json": ("answers", "a.json", "{", "a.json:1: want valid JSON"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows_are_named(case: str, tmp_path: Path) -> None:
    wanted, name, text, message = WRONG[case]
    with pytest.raises(HeddleError) as caught:
        read(put(tmp_path / name, text), wanted)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_wrong_column_lists_those_there_are(tmp_path: Path) -> None:
    table, rows = (
        put(tmp_path / "a.csv", "text,label\nx,y\n"),
        put(tmp_path / "a.jsonl", lines({"text": "x", "label": 1})),
    )
    for source in (CsvSource(path=table, label="labl"), JsonlSource(path=rows, label="labl")):
        with pytest.raises(HeddleError, match=r"no (column|field) 'labl'; the (header|row) has text, label"):
            list(source.documents(DocumentCounter()))


def test_kinds_of_files(tmp_path: Path) -> None:
    assert isinstance(corpus_for(put(tmp_path / "a.conll", "a O\n")).sources[0], ConllSource)
    tagged = corpus_for(put(tmp_path / "eng.train", "a O\n")).resolve("tags").sources[0]
    assert isinstance(tagged, ConllSource)
    assert isinstance(corpus_for(put(tmp_path / "a.json", "[]")).resolve("answers").sources[0], SquadSource)
