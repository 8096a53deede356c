"""Retrieval: BM25 is its formula, neighbours keep their distance, and an index is read back as it was written."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.runs import config, save_run

import heddle
from heddle.cli.main import main
from heddle.core import ConfigError, DamageError, DataError, HeddleError
from heddle.tasks.retrieval import (
    BM25,
    BM25Retriever,
    EmbeddingRetriever,
    Entry,
    EntryColumns,
    PairIndex,
    Query,
    distinct_texts,
    normalized,
    open_index,
    read_entries,
    read_queries,
    save_index,
    terms_of,
)

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "hat", "ran", "red", "blue", "big"]


def texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, weights=range(len(WORDS), 0, -1), k=draw.randint(0, 9))) for _ in range(count)]


def reference(corpus: list[str], query: str, k1: float, b: float) -> list[float]:
    """Return BM25 of each text, word by word, as the formula has it."""
    split = [text.lower().split() for text in corpus]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        total = 0.0
        for word in query.lower().split():
            holding = sum(word in other for other in split)
            idf = math.log(1 + (len(split) - holding + 0.5) / (holding + 0.5))
            times = words.count(word)
            if times:
                total += idf * times * (k1 + 1) / (times + k1 * (1 - b + b * len(words) / mean))
        scores.append(total)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (2.0, 0.0), (0.5, 1.0)])
def test_bm25_is_its_formula(k1: float, b: float) -> None:
    corpus = texts(40)
    retriever = BM25Retriever.build(corpus, BM25(k1=k1, b=b))
    queries = [*texts(10, seed=1), "cat cat cat", "unheard of", ""]
    for query, scores in zip(queries, retriever.scores(queries), strict=True):
        np.testing.assert_allclose(scores, reference(corpus, query, k1, b), rtol=1e-5, atol=1e-6)


def test_words_are_known_in_any_case_and_beside_punctuation() -> None:
    assert terms_of("Don't stop, ÉCOLE!") == ["don", "t", "stop", "école"]
    with pytest.raises(ConfigError, match="b: want 0 to 1, got 2"):
        BM25(b=2.0)
    with pytest.raises(ConfigError, match="k1: want at least 0, got -1"):
        BM25(k1=-1.0)


# --- which pairs are neighbours ---------------------------------------------------------------------------------------


def index_of(entries: list[Entry]) -> PairIndex:
    return PairIndex(tuple(entries), BM25Retriever.build(distinct_texts(entries)))


def random_entries(count: int) -> list[Entry]:
    draw = random.Random(3)
    made = texts(count, seed=4)
    return [
        Entry(
            text if draw.random() < 0.7 else f" {text.upper()}  ",
            f"reply {i}",
            (f"d{i // 4}", f"f{draw.randint(0, 5)}"),
        )
        for i, text in enumerate(made)
    ]


def test_no_neighbour_has_the_same_text_or_shares_a_group_and_none_that_may_be_is_nearer() -> None:
    entries = random_entries(120)
    index, checked = index_of(entries), 0
    queries = [one.query for one in entries]
    for query, near in zip(queries, index.neighbours(queries, k=3), strict=True):
        allowed = [
            one
            for one in entries
            if normalized(one.text) != normalized(query.text)
            and one.groups[0] != query.groups[0]
            and one.groups[1] != query.groups[1]
        ]
        assert all(one.entry in allowed for one in near)
        scores = BM25Retriever.build(distinct_texts(entries)).scores([query.text])[0]
        by_text = {normalized(t): float(s) for t, s in zip(distinct_texts(entries), scores, strict=True)}
        wanted = sorted({normalized(one.text): by_text[normalized(one.text)] for one in allowed}.values(), reverse=True)
        assert [one.score for one in near] == [score for score in wanted[:3] if score > 0]
        checked += len(near)
    assert checked > 200


def test_of_pairs_with_one_text_the_first_allowed_is_taken_and_others_are_no_second_neighbour() -> None:
    entries = [Entry("a cat", "one", ("x",)), Entry("A  CAT", "two", ("y",)), Entry("a cat sat", "three", ("z",))]
    index = index_of(entries)
    (near,) = index.neighbours([Query("the cat", ("x",))], k=5)
    assert [one.entry.target for one in near] == ["two", "three"]
    assert [one.entry.target for one in next(index.neighbours([Query("a cat")], k=5))] == ["three"]
    assert next(index.neighbours([Query("nothing shared")])) == []


def test_many_forbidden_ones_before_do_not_hide_a_neighbour() -> None:
    entries = [Entry(f"cat cat {'x' * i}", "no", ("own",)) for i in range(1, 200)] + [
        Entry("cat and dog", "yes", ("b",))
    ]
    (near,) = index_of(entries).neighbours([Query("cat", ("own",))])
    assert [one.entry.target for one in near] == ["yes"]


# --- by embeddings ----------------------------------------------------------------------------------------------------


def test_embeddings_are_those_of_the_model_and_another_model_is_refused(tmp_path: Path) -> None:
    for layers, name in enumerate(("one", "two"), 1):
        save_run(tmp_path / name, config("bert-base", layers=layers))
    one, two = (heddle.load(tmp_path / name) for name in ("one", "two"))
    entries = [Entry(text or "empty", f"reply {i}") for i, text in enumerate(texts(12))]
    corpus = distinct_texts(entries)
    retriever = EmbeddingRetriever.build(corpus, lambda some: one.embed(list(some)))
    cosines = torch.nn.functional.cosine_similarity(one.embed(["a cat"]), one.embed(corpus))
    np.testing.assert_allclose(retriever.scores(["a cat"])[0], cosines.numpy(), atol=1e-5)
    index = PairIndex(tuple(entries), retriever)
    save_index(index, "one", (), tmp_path / "index")
    again = open_index(tmp_path / "index", lambda name: lambda some: {"one": one}[name].embed(list(some)))
    assert list(again.neighbours([Query("a cat")], 3)) == list(index.neighbours([Query("a cat")], 3))
    with pytest.raises(
        ConfigError, match="by: want the model that embedded the texts of this index, got 'another one'"
    ):
        open_index(tmp_path / "index", lambda name: lambda some: two.embed(list(some)))


# --- on the disk ------------------------------------------------------------------------------------------------------


def no_model(name: str) -> None:
    raise AssertionError("BM25 needs no model")


def test_a_saved_index_is_the_same_and_damage_of_any_file_is_found(tmp_path: Path) -> None:
    entries = random_entries(30)
    index, folder = index_of(entries), tmp_path / "index"
    save_index(index, "bm25", ("dialogue", "first"), folder)
    again = open_index(folder, no_model)  # type: ignore[arg-type]
    queries = [one.query for one in entries]
    assert again.entries == index.entries
    assert list(again.neighbours(queries, 2)) == list(index.neighbours(queries, 2))
    for file in sorted(folder.iterdir()):
        right = file.read_bytes()
        for at in {len(right) // 3, len(right) - 2}:
            file.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
            with pytest.raises(DamageError):
                open_index(folder, no_model)  # type: ignore[arg-type]
        file.unlink()
        with pytest.raises(HeddleError):
            open_index(folder, no_model)  # type: ignore[arg-type]
        file.write_bytes(right)
    with pytest.raises(DataError, match="want a free path for the index"):
        save_index(index, "bm25", (), folder)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_pairs_and_queries_are_read_with_their_groups(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,reply,dialogue,first\na,b,1,x\nc,d,2,y\n")
    entries = read_entries(str(tmp_path / "a.csv"), EntryColumns(groups=("dialogue", "first")))
    assert entries == [Entry("a", "b", ("1", "x"), "a.csv:2"), Entry("c", "d", ("2", "y"), "a.csv:3")]
    named = read_entries(str(tmp_path / "a.csv"), EntryColumns(text="reply", target="text"))
    assert [(one.text, one.target, one.groups) for one in named] == [("b", "a", ()), ("d", "c", ())]
    (tmp_path / "q.jsonl").write_text(json.dumps({"text": "a", "dialogue": "1"}) + "\n")
    queries, missing = read_queries(str(tmp_path / "q.jsonl"), EntryColumns(groups=("dialogue", "first")))
    assert (queries, missing) == ([Query("a", (), None, "q.jsonl:1")], ("first",))
    with pytest.raises(DataError, match="'dialogue' holds groups; name it: --target"):
        read_entries(str(tmp_path / "q.jsonl"), EntryColumns(groups=("dialogue",)))
    queries, missing = read_queries(str(tmp_path / "q.jsonl"), EntryColumns(groups=("dialogue",)))
    assert (queries, missing) == ([Query("a", ("1",), None, "q.jsonl:1")], ())


# --- the verb ---------------------------------------------------------------------------------------------------------

PAIRS = [
    {"text": f"where is {who}'s {what}?", "target": f"the {what} of {who} is here.", "dialogue": f"d{i}"}
    for i, who in enumerate(("anna", "ben", "carl", "dora"))
    for what in ("cat", "dog", "hat")
]


EDIT = ["retrieve", "index", "new.txt", "--edit", "retrieve_and_edit", "--max-tokens", "5", "--beams", "2"]


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_verb_writes_training_data_that_training_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS * 4))
    assert main(["retrieve", "pairs.jsonl", "--group", "dialogue", "--index", "index", "-o", "edits.jsonl"]) == 0
    rows = [json.loads(line) for line in Path("edits.jsonl").read_text().splitlines()]
    assert [{name: row[name] for name in PAIRS[0]} for row in rows] == PAIRS * 4
    owner = {f"pairs.jsonl:{n}": row["dialogue"] for n, row in enumerate(PAIRS * 4, 1)}
    assert all(owner[row["neighbour"]] != row["dialogue"] and row["prototype"] != row["target"] for row in rows)
    small = "model.layers=1 model.width=16 model.heads=2 model.hidden=16 rows.batch=4 training.batch=4 training.steps=3"
    more = ["tokenizer={kind: byte}", "data.split={kind: hash, fraction: 0.3}", "every.sample=3"]
    assert main(["train", "retrieve_and_edit", "data=edits.jsonl", *small.split(), *more]) == 0
    assert "heddle retrieve INDEX - --edit" in capsys.readouterr().out
    assert "edited  the " in Path("runs/retrieve_and_edit/samples.txt").read_text()
    Path("new.txt").write_text("where is emil's cat?\n\nunheard of\n")
    assert (
        main(
            [
                "retrieve",
                "index",
                "new.txt",
                "--edit",
                "retrieve_and_edit",
                "--json",
                "--max-tokens",
                "5",
                "--beams",
                "2",
            ]
        )
        == 0
    )
    first, second = lines(capsys)
    assert first["text"] == "where is emil's cat?" and first["prototype"] == "the cat of anna is here."
    assert second["prototype"] == "" and "neighbour" not in second
    lm = heddle.load("retrieve_and_edit")
    source = lm.tokenizer.source("where is emil's cat?", "the cat of anna is here.")
    (wanted,) = lm.generate_ids([source], beams=2, max_tokens=5, length_penalty=1.0)
    assert first["reply"] == " ".join(lm.tokenizer.decode(wanted).split())
    assert main(EDIT) == 0
    assert capsys.readouterr().out.splitlines() == [first["reply"], second["reply"]]


def test_a_query_that_is_too_long_for_the_editor_is_reported_and_the_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "runs" / "editor", config("transformer_pre_norm", edits={"head": "pointer_generator"}))
    Path("pairs.csv").write_text("text,target\nshort one,a\nshort two,b\n")
    Path("new.txt").write_text(f"short\n{'long ' * 200}\nshort one\n")
    assert main(["retrieve", "pairs.csv", "new.txt", "--edit", "editor", "--json", "--max-tokens", "3", "-k", "2"]) == 1
    said = capsys.readouterr()
    assert [json.loads(line)["text"] for line in said.out.splitlines()] == ["short", "short", "short one"]
    assert said.err.startswith("heddle: new.txt:2: ") and said.err.count("\n") == 1


def test_a_table_of_queries_without_the_groups_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    Path("q.csv").write_text("text\nwhere is anna?\n")
    assert main(["retrieve", "pairs.jsonl", "q.csv", "--group", "dialogue", "-k", "2"]) == 0
    said = capsys.readouterr()
    assert "q.csv: has no column 'dialogue': neighbours of every group are allowed" in said.err
    assert len(said.out.splitlines()) == 2


def test_a_model_may_compare_texts_and_a_saved_index_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "runs" / "encoder", config("bert-base"))
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    Path("new.txt").write_text("where is emil's cat?\n")
    assert main(["retrieve", "pairs.jsonl", "new.txt", "--by", "runs/encoder", "--index", "index"]) == 0
    first = capsys.readouterr().out
    assert main(["retrieve", "index", "new.txt"]) == 0
    assert capsys.readouterr().out == first and json.loads(first)["prototype"]
    assert main(["retrieve", "index", "new.txt", "--by", "bm25"]) == 2
    assert "--by: want none, because a saved index has its own, got 'bm25'" in capsys.readouterr().err
