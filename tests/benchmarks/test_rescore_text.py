"""The text that a rescorer is trained on holds nothing of what it is measured by; the trigram beside it is a model."""

import json
import lzma
import math
import random
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
from scripts import script


@pytest.fixture(scope="module")
def text() -> ModuleType:
    return script("rescore_text")


def words(seed: int, count: int) -> list[str]:
    return random.Random(seed).choices([f"{a}{b}" for a in "bcdfghjk" for b in ("an", "el", "ip", "ot")], k=count)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def book(title: str, *stretches: list[str]) -> dict[str, object]:
    """Return a book of sentences in which some stretches stand, each in filling of its own."""
    filling = iter(range(100))
    parts = [words(1000 + ord(title) * 100 + next(filling), 30) + stretch for stretch in stretches]
    sentences = [" ".join(part).capitalize() + "." for part in parts]
    return {"author": "A", "title": title, "text": "\n\n".join(sentences)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    one, two = words(1, 40), words(2, 5)
    for number, name in enumerate(("dev_clean", "dev_other", "test_clean", "test_other")):
        refs = [one, two, words(3, 12)] if name == "test_other" else [words(10 + number, 20)]
        rows = [
            {
                "id": f"s{number}-1-{i:04d}",
                "ref": " ".join(ref).upper(),
                "hyps": [{"text": f"UTTERANCE {i}", "score": 0}],
            }
            for i, ref in enumerate(refs)
        ]
        write(folder / "speech-librispeech-nbest" / f"{name}.jsonl.xz", rows)
    books = [
        book("a", one[:13]),  # one 13-gram, in which six 8-grams are
        book("b", one[:8], one[10:18], words(3, 12)[2:10]),  # three 8-grams
        book("c", one[:8], one[10:18], one[:8]),  # two, one of them twice
        book("d", one[-4:] + two),  # across the end of a reference
        book("e", one[:7], words(7, 20)),
    ]
    write(folder / "lm-gutenberg" / "train-00.jsonl.xz", books)
    return folder


@pytest.fixture(scope="module")
def prepared(text: ModuleType, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("out")
    text.prepare(data, out, Namespace(context=2, wikipedia=0, workers=1, books=None))
    return out


def test_books_that_share_enough_are_dropped_whole(prepared: Path) -> None:
    report = json.loads((prepared / "prepare.json").read_text())["lm-gutenberg"]
    gone = {row["title"]: (row["8-grams"], row["13-grams"]) for row in report["gone"]}
    assert gone == {"a": (6, 1), "b": (3, 0)}
    assert (report["documents"], report["dropped"]) == (3, 2)


def test_joined_references_are_found_across_their_ends(text: ModuleType, data: Path) -> None:
    known = text.references(data)
    assert known.shared(words(1, 40)[-6:] + words(2, 5) + words(3, 12)[:3]) == (7, 2)
    assert known.shared(words(1, 40)[:7]) == (0, 0)
    assert known.shared([]) == (0, 0)


def test_documents_hold_lines_in_normal_form(prepared: Path) -> None:
    rows = [json.loads(line)["text"] for line in (prepared / "train.jsonl").read_text().splitlines()]
    assert rows and all(row.endswith("\n") and row == row.lower() and "." not in row for row in rows)
    held = json.loads((prepared / "valid.jsonl").read_text().splitlines()[0])["text"]
    assert held == " ".join(words(10, 20)) + "\n"


def test_lists_know_what_was_recognised_before(prepared: Path) -> None:
    rows = [json.loads(line) for line in (prepared / "test_other.jsonl").read_text().splitlines()]
    assert [row["context"] for row in rows] == ["", "utterance zero\n", "utterance one\n"]


def test_sentences_end_where_they_should(text: ModuleType) -> None:
    paragraph = 'Mr. J. Smith came. "Who?" said I. He had No. 5! Then he left'
    assert [s.strip() for s in text.sentences(paragraph)] == [
        "Mr. J. Smith came.",
        '"Who?" said I.',
        "He had No. 5!",
        "Then he left",
    ]
    long = ", ".join(["word " * 19 + "word"] * 4)
    assert max(len(line.split()) for line in text.sentences(long)) <= text.LONG


def test_trigram_shares_out_all_of_its_mass() -> None:
    trigram = script("trigram")
    lines = [words(seed, 12)[:9] for seed in range(60)]
    model = trigram.Trigram.learn(lambda: lines)
    outcomes = [trigram.UNKNOWN, trigram.END, *model.numbers.values()]
    for first, second in ((1, 1), (1, 5), (4, 6), (0, 0)):
        assert math.fsum(model._next(first, second, word) for word in outcomes) == pytest.approx(1.0)
    assert model.logprob(lines[0]) > model.logprob(lines[0][::-1])
